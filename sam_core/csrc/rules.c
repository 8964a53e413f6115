// SPDX-License-Identifier: Apache-2.0

#include "rule_blend.h"

size_t rule_model_bytes(void) { return sizeof(rule_model); }

size_t rule_work_bytes(void) { return sizeof(rule_work); }

rule_work *rule_model_work(rule_model *m) { return &m->work; }

void rule_model_init(rule_model *m, rule_name rule) {
    model_init(&m->model, rule == RULE_OLDEST || rule == RULE_NEWEST);
}

void *rule_model_learned(rule_model *m, size_t *bytes) {
    *bytes = sizeof(model_learned);
    return &m->model.learned;
}

bool rule_model_valid(const rule_model *m) { return model_valid(&m->model); }

// Ends a draft before the first token outside the vocabulary.
static void end_at_foreign_token(output *o, uint32_t vocab_size) {
    for (uint32_t i = 0; vocab_size && i < o->size; i++)
        if ((uint32_t)o->tokens[i] >= vocab_size) {
            o->size = i;
            o->below_min_prob = false;
            return;
        }
}

// Ends a task with its draft. Returns false if there is no memory for what is to be kept of it.
static bool finish(draft *d, output *o, sam_memory *memory, rule_task *t) {
    rule_record *record = t->record;
    t->size = 0;
    record->drafted = record->kept = 0;
    record->due[RULE_BINS] = d->rule == RULE_BLEND;
    record->due[RULE_SUCCESSORS] = d->rule == RULE_BLEND && !d->context->isolated;
    record->due[RULE_TOKENS] = false;
    memcpy(record->last, d->context->last, sizeof record->last);
    end_at_foreign_token(o, d->context->vocab_size);
    if (!o->size)
        return true;
    if (!draft_keep(d, memory, o, record)) {
        memset(record->due, 0, sizeof record->due);
        return false;
    }
    t->size = record->drafted;
    memcpy(t->tokens, o->tokens, t->size * sizeof(int32_t));
    for (uint32_t i = 0; t->scores && i < t->size; i++)
        t->scores[i] = (float)o->paths[i] / (float)PATH_ONE;
    for (uint32_t i = 0; t->match_lengths && i < t->size; i++)
        t->match_lengths[i] = (int32_t)o->lengths[i];
    return true;
}

// How many drafts of at most k tokens are made side by side: of `blend` those that fit a rule_work, at most RULE_BATCH.
static uint32_t batch_size(rule_name rule, uint32_t k) {
    if (rule != RULE_BLEND)
        return 1;
    uint32_t fit = smaller(MAX_NODES / (k + 1), ALL_CANDIDATES / (MAX_CANDIDATES + k * DEEP_CANDIDATES));
    return smaller(fit, RULE_BATCH);
}

static void make_drafts(chain *chains, uint32_t count) {
    draft *d = &chains->draft;
    if (d->rule == RULE_SUFFIX)
        draft_suffix(d, &chains->output);
    else if (d->rule == RULE_BLEND)
        blend_chains(chains, count);
    else
        draft_copy(d, &chains->output);
}

uint32_t rule_draft(const rule_model *m, rule_work *work, sam_memory *memory, rule_name rule, float min_prob,
                    rule_task *tasks, uint32_t count) {
    chain chains[RULE_BATCH];
    uint32_t k = 0;
    for (uint32_t i = 0; i < count; i++)
        k = tasks[i].k > k ? tasks[i].k : k;
    uint32_t batch = batch_size(rule, k);
    for (uint32_t from = 0; from < count; from += batch) {
        uint32_t taken = smaller(batch, count - from);
        for (uint32_t i = 0; i < taken; i++) {
            const rule_task *t = &tasks[from + i];
            chain *c = &chains[i];
            c->draft = (draft){.model = m,
                               .context = &t->context,
                               .nodes = work->nodes + i * (k + 1),
                               .candidates = work->candidates + i * (ALL_CANDIDATES / batch),
                               .rule = rule};
            c->output.k = t->k;
            c->output.min_prob = (uint32_t)(min_prob * (float)PATH_ONE);
            c->output.size = 0;
            c->output.below_min_prob = false;
            c->output.with_lengths = t->match_lengths != NULL;
            c->at = c->draft.nodes;
            if (rule == RULE_BLEND)
                blend_start(&c->draft);
        }
        make_drafts(chains, taken);
        for (uint32_t i = 0; i < taken; i++)
            if (!finish(&chains[i].draft, &chains[i].output, memory, &tasks[from + i]))
                return from + i;
    }
    return count;
}
