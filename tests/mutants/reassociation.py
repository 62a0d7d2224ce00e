"""Mutants of products that are computed in another order (csrc/passes/reassociate.c)."""

from mutants.mutant import Mutant, c, python

MUTANTS = [
    Mutant(
        "reassociate-what-others-read",
        "csrc/passes/reassociate.c",
        "hl_uses_count(uses, first->out) == 1 &&",
        "",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-what-is-kept",
        "csrc/passes/reassociate.c",
        "!uses->kept[first->out] &&",
        "",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-behind-a-bias",
        "csrc/passes/reassociate.c",
        "is_of_rows(graph, first) && first->n_in == 2",
        "is_of_rows(graph, first)",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-over-a-fence",
        "csrc/passes/reassociate.c",
        "first->fence == second->fence",
        "true",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-over-a-checkpoint",
        "csrc/passes/reassociate.c",
        "first->checkpoint == second->checkpoint",
        "true",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-over-segments",
        "csrc/passes/reassociate.c",
        "first->segment == second->segment",
        "true",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-without-counting-gradients",
        "csrc/passes/reassociate.c",
        "(1 + dx + (da || db))",
        "1",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-what-is-more-work",
        "csrc/passes/reassociate.c",
        "return changed < as_is;",
        "return true;",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-and-forget-a-transposition",
        "csrc/passes/reassociate.c",
        "c->second.attrs.matmul.trans_b, &in[1]",
        "false, &in[1]",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-two-products-alone",
        "csrc/passes/reassociate.c",
        "status == HL_OK;) status",
        "status == HL_OK; any = false) status",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-at-another-place",
        "csrc/passes/reassociate.c",
        "    hl_graph_stand_by(graph, &here);\n",
        "",
        c("test_reassociate"),
    ),
    Mutant(
        "reassociate-in-float16",
        "csrc/passes/step.c",
        "    if (s->spec->scales_loss) return HL_OK;\n",
        "",
        python("tests/train/test_reassociation.py"),
    ),
]
