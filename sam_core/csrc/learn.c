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
    uint32_t steps = d->node_count > o->size ? d->node_count : o->size;
    size_t candidates = d->candidate_count * sizeof(candidate),
           bytes = steps * sizeof(kept_step) + candidates;
    if (bytes > record->bytes) {
        size_t capacity = bytes + bytes / 2;
        void *block = sam_resize(memory, record->block, record->bytes, capacity);
        if (!block)
            return false;
        record->block = block;
        record->bytes = capacity;
    }
    memcpy(record->source, o->sources, o->size);
    kept_step *kept = record->block;
    for (uint32_t i = 0; i < steps; i++) {
        kept[i] = (kept_step){.token = SAM_NO_TOKEN};
        if (i < o->size) {
            kept[i].token = o->tokens[i];
            kept[i].bin = o->bins[i];
        }
        if (i < d->node_count)
            kept[i].candidates = (uint16_t)d->nodes[i].count;
        if (i + 1 < d->node_count)
            kept[i].token = d->nodes[i + 1].token; // also behind a token outside the vocabulary
    }
    memcpy(kept + steps, d->candidates, candidates);
    record->steps = steps;
    record->candidates = d->candidate_count;
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

static const candidate *candidates_of(const rule_record *record) {
    return (const candidate *)((const kept_step *)record->block + record->steps);
}

void rule_prefetch_lesson(const rule_model *rm, const rule_record *record, int lesson) {
    if (!record->due[lesson])
        return;
    if (lesson == RULE_SUCCESSORS)
        model_prefetch_successors(&rm->model, record->last);
    if (lesson == RULE_SUCCESSORS || !record->kept)
        return;
    const candidate *c = candidates_of(record);
    for (uint32_t i = 0; i < record->candidates && i < MAX_CANDIDATES; i++, c++) {
        if (lesson == RULE_BINS)
            sam_prefetch(rm->model.learned.weights[c->set]);
        for (uint32_t order = 0; lesson == RULE_TOKENS && order < MODEL_TOKENS; order++)
            sam_prefetch(&rm->model.learned.tokens[order][c->hash[order]]);
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
    const kept_step *step = record->block;
    const candidate *c = candidates_of(record);
    for (uint32_t i = 0; i < count && i < record->steps; i++, step++) {
        for (const candidate *end = c + step->candidates; c < end; c++)
            if (lesson == RULE_BINS)
                learn_bins(m, c, c->token == tokens[i]);
            else
                learn_tokens(m, c, c->token == tokens[i]);
        bool outcome = step->token == tokens[i];
        if (lesson == RULE_BINS && rule != RULE_BLEND)
            model_update(&m->learned.bins[step->bin], outcome);
        if (!outcome)
            break;
        if (lesson == RULE_BINS && i < record->drafted)
            accepted[record->source[i]]++;
    }
}
