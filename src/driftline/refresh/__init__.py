"""What a new version of a task set is made of, stage by stage: values in, values out. Pure.

    windows ─▶ propose ─▶ validate ─▶ drop duplicates ─▶ measure ─▶ curate ─▶ publish ─▶ report
               proposing  validating  duplicates         solving    curating             reporting

| stage | takes | gives |
|---|---|---|
| `proposing` | environment, seed, solve rates by level | windows of seeds, and what the family generates in them |
| `validating` | what attempts at a task led to | accepted, rejected, or quarantined with the evidence |
| `duplicates` | proposals, held-out and earlier tasks | what is new, and what each of the others is a copy of |
| `solving` | outcomes of episodes | solve rates by task and by level |
| `curating` | tasks with solve rates, the target band | pools, weights, and what came and went |
| `reporting` | all of that | statistics for the manifest, and a report |

Playing, storing and waiting is the business of `tasks.refresh`. Nothing here depends on the clock, on the order in
which a mapping was filled, or on PYTHONHASHSEED: equal values give equal task sets on every machine.
"""
