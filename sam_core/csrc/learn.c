// SPDX-License-Identifier: Apache-2.0
//
// Records of drafts, and what is learned from them.

#include "draft.h"

void rule_record_free(rule_record *record, sam_memory *memory) {
    sam_resize(memory, record->block, record->bytes, 0);
    record->block = NULL;
    record->bytes = 0;
    record->drafted = record->kept = 0;
    memset(record->due, 0, sizeof record->due);
}

bool draft_keep(const draft *d, sam_memory *memory, const output *o, rule_record *record) {
    size_t tokens = o->size * sizeof(kept_token), candidates = d->candidate_count * sizeof(candidate);
    size_t bytes = sizeof(record_block) + tokens + candidates + d->node_count * sizeof(kept_node);
    if (bytes > record->bytes) {
        size_t capacity = bytes + bytes / 2;
        void *block = sam_resize(memory, record->block, record->bytes, capacity);
        if (!block)
            return false;
        record->block = block;
        record->bytes = capacity;
    }
    record_block *block = record->block;
    memcpy(record->source, o->sources, o->size);
    block->node_count = d->node_count;
    block->candidate_count = d->candidate_count;
    kept_token *kept = (kept_token *)(block + 1);
    for (uint32_t i = 0; i < o->size; i++)
        kept[i] = (kept_token){o->tokens[i], o->bins[i]};
    memcpy(kept + o->size, d->candidates, candidates);
    kept_node *nodes = (kept_node *)((char *)(kept + o->size) + candidates);
    for (uint32_t i = 0; i < d->node_count; i++)
        nodes[i] = d->nodes[i].kept;
    record->drafted = o->size - o->below_min_prob;
    record->kept = o->size;
    record->due[RULE_TOKENS] = !d->context->isolated;
    record->due[RULE_BINS] = true;
    return true;
}

// Moves each weight of a set by error * input / 4096, rounded. Inputs that a
// candidate lacks are 0 and move nothing. There are no branches, so that compilers vectorise the loop.
static void move_weights(int32_t *weights, int16_t error, const int16_t *inputs) {
    for (uint32_t i = 0; i < MODEL_INPUTS; i++) {
        int32_t product = (int32_t)error * inputs[i];
        int32_t moved = weights[i] + ((product + 2048 + (product >> 31)) >> 12);
        moved = moved > MODEL_MAX_WEIGHT ? MODEL_MAX_WEIGHT : moved;
        weights[i] = moved < -MODEL_MAX_WEIGHT ? -MODEL_MAX_WEIGHT : moved;
    }
}

static void learn_bins(model *m, const candidate *c, bool outcome) {
    int16_t error = (int16_t)((outcome ? MODEL_ONE - 1 : 0) - c->probability);
    move_weights(m->learned.weights[c->set], error, c->stretch);
    for (uint32_t i = 0; i < c->bins; i++)
        model_update(&m->learned.bins[c->bin[i]], outcome);
}

static void learn_tokens(model *m, const candidate *c, bool outcome) {
    for (uint32_t order = 0; order < MODEL_TOKENS; order++)
        model_update(&m->learned.tokens[order][c->hash[order]], outcome);
}

// What a record keeps of a draft.
typedef struct {
    const kept_token *tokens;
    const candidate *candidates;
    const kept_node *nodes;
    uint32_t candidate_count, node_count;
} contents;

static contents contents_of(const rule_record *record) {
    const record_block *block = record->block;
    contents c = {.candidate_count = block->candidate_count, .node_count = block->node_count};
    c.tokens = (const kept_token *)(block + 1);
    c.candidates = (const candidate *)(c.tokens + record->kept);
    c.nodes = (const kept_node *)(c.candidates + c.candidate_count);
    return c;
}

void rule_prefetch_lesson(const rule_model *rm, const rule_record *record, int lesson) {
    if (!record->due[lesson])
        return;
    if (lesson == RULE_SUCCESSORS)
        model_prefetch_successors(&rm->model, record->last);
    if (lesson == RULE_SUCCESSORS || !record->kept)
        return;
    contents of = contents_of(record);
    for (uint32_t i = 0; i < of.candidate_count && i < MAX_CANDIDATES; i++) {
        const candidate *c = &of.candidates[i];
        if (lesson == RULE_BINS)
            sam_prefetch(rm->model.learned.weights[c->set]);
        for (uint32_t order = 0; lesson == RULE_TOKENS && order < MODEL_TOKENS; order++)
            sam_prefetch(&rm->model.learned.tokens[order][c->hash[order]]);
    }
}

// Learns from the tokens of the draft, and counts those that are confirmed.
static void learn_drafted(model *m, rule_name rule, const rule_record *record, const contents *of,
                          const int32_t *tokens, uint32_t count, uint64_t accepted[RULE_SOURCES]) {
    for (uint32_t i = 0; i < count && i < record->kept; i++) {
        bool outcome = of->tokens[i].token == tokens[i];
        if (rule != RULE_BLEND)
            model_update(&m->learned.bins[of->tokens[i].bin], outcome);
        if (!outcome || i == record->drafted)
            break;
        accepted[record->source[i]]++;
    }
}

void rule_learn(rule_model *rm, rule_name rule, rule_record *record, int lesson, const int32_t *tokens,
                uint32_t count, uint64_t accepted[RULE_SOURCES]) {
    model *m = &rm->model;
    if (!record->due[lesson])
        return;
    record->due[lesson] = false;
    for (uint32_t i = 0; lesson == RULE_SUCCESSORS && i < count; i++)
        model_learn_successor(m, record->last, tokens[i]);
    if (lesson == RULE_SUCCESSORS || !record->kept)
        return;
    contents of = contents_of(record);
    if (lesson == RULE_BINS)
        learn_drafted(m, rule, record, &of, tokens, count, accepted);
    for (uint32_t i = 0; i < count && of.node_count; i++) {
        const kept_node *n = &of.nodes[i];
        for (uint32_t j = 0; j < n->count; j++) {
            const candidate *c = &of.candidates[n->first + j];
            if (lesson == RULE_BINS)
                learn_bins(m, c, c->token == tokens[i]);
            else
                learn_tokens(m, c, c->token == tokens[i]);
        }
        if (i + 1 == of.node_count || of.nodes[i + 1].token != tokens[i])
            break;
    }
}
