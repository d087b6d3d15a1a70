# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""Turns by transformers, with one KV cache over all turns of all episodes that go on."""

from __future__ import annotations

import torch
from transformers import DynamicCache


class CachedTurns:
    """Samples a turn of each episode. The last token of a turn is fed with the observation after it."""

    def __init__(self, model, rows, stop_ids, max_tokens):
        self._model, self._max_tokens = model, max_tokens
        self._stop_ids = torch.tensor(stop_ids)
        self._cache = DynamicCache(config=model.config)
        self._mask_BT = torch.zeros(rows, 0, dtype=torch.long)

    @torch.no_grad()
    def sample(self, observed):
        """One turn after each observation: the ids and their log-probabilities."""
        width = max(map(len, observed))
        ids_BT = torch.tensor([[0] * (width - len(ids)) + ids for ids in observed])
        real_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in observed])
        going_B = torch.ones(len(observed), dtype=torch.bool)
        columns = []
        for _ in range(self._max_tokens):
            logprobs_BV = self._feed(ids_BT, real_BT).log_softmax(-1)
            ids_BT = torch.multinomial(logprobs_BV.exp(), 1)
            columns.append((ids_BT[:, 0], logprobs_BV.gather(1, ids_BT)[:, 0], going_B))
            going_B = going_B & ~torch.isin(ids_BT[:, 0], self._stop_ids)
            if not going_B.any():
                break
            real_BT = going_B.long().unsqueeze(1)
        sampled_BT, logprobs_BT, kept_BT = (torch.stack(parts, 1) for parts in zip(*columns, strict=True))
        rows = range(len(observed))
        return [sampled_BT[r, kept_BT[r]].tolist() for r in rows], [logprobs_BT[r, kept_BT[r]].tolist() for r in rows]

    def keep(self, rows):
        """Go on with these episodes alone."""
        self._cache.batch_select_indices(torch.tensor(rows))
        self._mask_BT = self._mask_BT[rows]

    def _feed(self, ids_BT, real_BT):
        """Logits `[B, V]` after the last column; columns that are not real are masked for ever."""
        self._mask_BT = torch.cat([self._mask_BT, real_BT], 1)
        positions_BT = (self._mask_BT.cumsum(1) - 1).clamp(min=0)[:, -ids_BT.shape[1] :]
        out = self._model(
            input_ids=ids_BT,
            attention_mask=self._mask_BT,
            position_ids=positions_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]
