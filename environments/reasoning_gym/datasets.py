"""What is known of the datasets of the pinned reasoning-gym, so that listing them imports nothing.

Tests compare all of it with the library.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = "0.1.25"

_BY_LEVELS: Mapping[int, str] = {
    0: "acre gsm_symbolic knight_swap list_functions",
    2: "caesar_cipher jugs survo",
    3: "bf word_ladder",
    4: (
        "rubiks_cube "
        "ab advanced_geometry arc_1d arc_agi binary_alternation binary_matrix calendar_arithmetic "
        "complex_arithmetic cryptarithm decimal_arithmetic dice fraction_simplification futoshiki game_of_life "
        "game_of_life_halting gcd graph_color group_anagrams isomorphic_strings kakurasu knights_knaves "
        "largest_island lcm mahjong_puzzle maze needle_haystack number_filtering number_format number_sequence "
        "palindrome_generation palindrome_partitioning path_star polynomial_equations polynomial_multiplication "
        "pool_matrix prime_factorization ransom_note rotten_oranges rush_hour sentence_reordering shortest_path "
        "simple_equations simple_geometry simple_integration spiral_matrix string_insertion string_splitting "
        "string_synthesis syllogism tower_of_hanoi tsumego word_sequence_reversal"
    ),
    5: (
        "modulo_grid "
        "base_conversion basic_arithmetic circuit_logic color_cube_rotation count_bits count_primes countdown "
        "course_schedule decimal_chain_sum letter_jumble manipulate_matrix mini_sudoku n_queens "
        "power_function rectangle_count rotate_matrix spell_backward "
        "string_manipulation sudoku word_sorting"
    ),
    6: "emoji_mystery figlet_font",
    7: "puzzle24 rearc time_intervals",
    8: "intermediate_integration letter_counting number_sorting",
    9: "aiw boxnet family_relationships",
    10: "bitwise_arithmetic quantum_lock self_reference",
    11: "chain_sum products",
    13: "coin_flip",
    14: "sokoban",
    36: "leg_counting",
}

LEVELS: Mapping[str, int] = dict(
    sorted((dataset, levels) for levels, datasets in _BY_LEVELS.items() for dataset in datasets.split())
)
"""Dataset -> usable levels of its curriculum; 0 is no curriculum."""

REFUSED: Mapping[str, frozenset[int]] = {
    "caesar_cipher": frozenset({2, 3}),
    "knight_swap": frozenset(range(5)),
    "modulo_grid": frozenset({1}),
    "rubiks_cube": frozenset({4}),
    "survo": frozenset({2, 3}),
}
"""Levels of the curriculum whose configuration the dataset itself refuses; they are passed over."""

TOO_DEAR: Mapping[str, frozenset[int]] = {"jugs": frozenset({2, 3})}
"""Levels at which the dataset searches for many seconds a task, or finds none; they are passed over as well."""

LEFT_OUT: Mapping[str, str] = {
    "codeio": "its entries are made by running programs that a language model wrote, outside of any sandbox",
    "composite": "a mixture of other datasets: name those",
    "propositional_logic": "most of its tasks have one answer in common: `(P ∨ Q)` is right in six of seven",
    "zebra_puzzles": "needs pycosat, which is there as source alone, and set-up needs no compiler",
}

APART = frozenset(
    {
        "isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder",
        "list_functions", "pool_matrix",
    }
)  # fmt: skip
"""Generated in a process of its own, with a fixed hash seed: they depend on PYTHONHASHSEED, or use (the last two) the
global random state."""

DEFAULTS: Mapping[str, Mapping[str, int]] = {"sokoban": {"min_boxes": 2, "max_boxes": 3}}
"""In place of the dataset's own, on levels too: four boxes and more take the generator up to minutes a puzzle."""

UNANSWERED: Mapping[str, str] = {"intermediate_integration": "Integral("}
"""Entries whose answer has this are left out: the question itself, which the library has not worked out."""

HEAVY = frozenset({"polynomial_multiplication", "simple_integration", "intermediate_integration", "rubiks_cube"})
"""An answer to them can take its scorer very long; a process can be killed."""

STEPPED = ("maze", "rush_hour", "sokoban", "tower_of_hanoi")
"""Played move by move as well."""
