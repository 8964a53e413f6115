# SPDX-License-Identifier: Apache-2.0
"""What docs/design-sam-core.md says of the code in numbers is so."""

import re

import numpy as np
import pytest
from c_programs import HERE, build, run

from sam_core import Pool

DESIGN = HERE.parents[1] / "docs" / "design-sam-core.md"
FACTS = """#include <stdio.h>
#include "model.h"
#include "rules.h"
int main(void) {
    sam_memory memory = {.limit = 1 << 20};
    int32_t tokens[] = {0, 1, 2, 1, 2};
    sam_text text = {tokens, 0, 5}, *texts[] = {&text};
    sam_index index;
    sam_cursor cursor = SAM_START;
    if (!sam_index_init(&index, &memory, SAM_COUNTED, texts))
        return 1;
    while (text.size < 5)
        if (text.size++, !sam_index_append(&index, &cursor, 0, text.size - 1))
            return 1;
    model_learned *m = NULL;
    printf("%zu %zu %zu %zu\\n", sizeof(sam_node), sizeof(sam_count), sizeof(sam_edge), sizeof(sam_chunk));
    printf("%d %d ", (int)SAM_MAX_MATCH, (int)MODEL_HASHES);
    printf("%d %d\\n", (int)MODEL_FOLLOWERS, (int)CORPUS_MAX_MATCH);
    printf("%zu %zu %zu ", sizeof m->cells, sizeof m->tokens, sizeof m->weights);
    printf("%zu %zu\\n", sizeof m->followers, rule_model_bytes());
    for (int i = 0; i < 5; i++)
        printf("%d ", (int)(index.links[i] & ~SAM_NODE));
    for (int i = 1; i < 3; i++)
        printf("%d %d %d ", (int)index.counts[i].marks, (int)index.counts[i].arrivals, (int)index.nodes[i].place);
    sam_index_free(&index);
}
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """Lines of numbers: sizes of records; limits; bytes learned; the automaton of A B C B C."""
    folder = tmp_path_factory.mktemp("facts")
    (folder / "facts.c").write_text(FACTS)
    sources = [str(folder / "facts.c"), "memory.c", "sam.c", "model.c", "rules.c", "corpus.c"]
    return [[*map(int, line.split())] for line in run(build(folder / "facts", sources)).splitlines()]


def test_sizes_of_records(facts):
    named = re.findall(r"`sam_(node|count|edge|chunk)` \| (\d+) \|", DESIGN.read_text())
    assert [int(size) for _, size in named] == facts[0]


def test_limits(facts):
    match, hashes, followers, corpus = facts[1]
    text = DESIGN.read_text()
    assert f"`SAM_MAX_MATCH` = {match}" in text and re.search(rf"\n### .* {match} token", text)
    assert all(f"of {size:,} entries" in text for size in (hashes, followers))
    assert f"up to {corpus} token" in text


def test_bytes_learned(facts):
    sizes = re.search(r"\*\*Sizes.*?\n\n", DESIGN.read_text(), re.DOTALL)[0]
    assert [int(size.replace(",", "")) for size in re.findall(r"\d+,\d+", sizes)] == facts[2]


def test_automaton_of_the_example(facts):
    block = DESIGN.read_text().partition("    place    0")[2]
    links = re.search(r"links +(\d+(?: +\d+){4})", block)[1]
    pairs = [re.search(rf"{word} (\d+) +{word} (\d+)", block).groups() for word in ("marks", "arrivals", "place")]
    assert [int(n) for n in links.split()] == facts[3][:5]
    assert [int(pair[node]) for node in (0, 1) for pair in pairs] == facts[3][5:]


def test_drafts_of_the_example():
    drafts = {}
    for rule in ("oldest", "newest", "count", "suffix", "blend"):
        pool = Pool(rule=rule)
        slots, token, one = np.array([pool.open([0, 1, 2, 1])], np.int32), np.array([2], np.int32), np.ones(1, np.int32)
        out, lengths = np.zeros((1, 5), np.int32), np.zeros(1, np.int32)
        pool.step(slots, token, one, 5, out, lengths)
        drafts[rule] = "".join("ABC"[i] for i in out[0, : lengths[0]])
    assert drafts == {"oldest": "BC", "newest": "BC", "suffix": "BC", "count": "BCBCB", "blend": "BCBCB"}
