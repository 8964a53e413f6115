// SPDX-License-Identifier: Apache-2.0

#include "rules.h"

#include <string.h>

#include "model.h"

enum {
    MAX_NODES = RULE_MAX_DRAFT + 1, // of a draft, the end of the text included
    MAX_MATCHES = MODEL_SOURCES * MODEL_RANKS,
    MAX_CANDIDATES = 24, // of one node
    DEEP_CANDIDATES = 5, // of a node below the first
    MORE = 6,            // further candidates of a match in a tree
    ALL_CANDIDATES = MAX_CANDIDATES + RULE_MAX_DRAFT * DEEP_CANDIDATES,
    SHORT_MATCH = 4, // followers are used only if no match has more tokens
    ALPHA = 4,       // tokens of a draft for each token of its match (SuffixDecoding's alpha)
};

_Static_assert((int)RULE_LAST == (int)MODEL_LAST, "followers are looked up by the last tokens");

#define PATH_ONE (1u << 30) // probability 1 of a path
#define NO_NODE UINT16_MAX

// A candidate for the token after a node, with the inputs of its probability.
typedef struct {
    int32_t token;
    uint16_t probability; // of MODEL_ONE
    uint16_t set;         // of weights
    uint8_t source;
    uint8_t cells;  // used of `cell`
    uint32_t share; // occurrences of the token overall, if it is among the most frequent
    uint16_t cell[MAX_MATCHES + 2];
    uint16_t hash[MODEL_TOKENS];
    int16_t stretch[MODEL_INPUTS]; // 0: the candidate lacks this input
} candidate;

_Static_assert(sizeof(candidate) == 64, "a candidate takes a cache line");

// The part of a node that is kept to learn from.
typedef struct {
    int32_t token;
    uint16_t parent;       // NO_NODE: the end of the text
    uint16_t first, count; // of its candidates
} kept_node;

// The block of a rule_record; kept tokens follow, then candidates, then nodes.
typedef struct {
    uint32_t node_count, candidate_count;
} record_block;

typedef struct {
    int32_t token, parent;
    uint32_t cell; // if its probability was not mixed
} kept_token;

typedef struct {
    kept_node kept;
    uint32_t path; // probability of the path to the node, of PATH_ONE
    int32_t draft; // number of its token in the draft, -1: the end of the text
    uint32_t depth;
    bool considered;
    uint32_t best;                 // the candidate to draft next
    uint32_t best_path;            // its path's probability; 0: none is left
    uint16_t left[MAX_CANDIDATES]; // their probabilities; 0: drafted
    int32_t last[RULE_LAST];       // tokens before its candidates
    sam_state state[RULE_INDEXES];
    uint32_t length[RULE_INDEXES];
    corpus_match corpus[MODEL_RANKS];
    uint32_t corpus_count;
} node;

struct rule_work {
    node nodes[MAX_NODES]; // of the current drafts
    candidate candidates[ALL_CANDIDATES];
};

struct rule_model {
    model model;
    rule_work work;
};

// A suffix of the text that occurs in a source.
typedef struct {
    uint32_t source, rank, length, marks, best_count;
    uint32_t cells; // the first of its cells
    int32_t best, newest;
    sam_state state;
    uint32_t listed; // tokens that followed it and are looked up
    bool all_listed; // no other token followed
    int32_t tokens[MORE];
    uint32_t counts[MORE];
} match;

typedef struct {
    const rule_model *model;
    const rule_context *context;
    node *nodes; // a part of a rule_work
    candidate *candidates;
    rule_name rule;
    bool tree;
    uint32_t node_count, candidate_count;
} draft;

// Whether a rule matches again at every drafted token.
static bool matches_again(rule_name rule) { return rule == RULE_COUNT || rule == RULE_BLEND; }

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// ---- matches

// The matches of one index at a node: the longest with a continuation, then shorter ones with more
// occurrences.
static uint32_t index_matches(const sam_index *index, uint32_t source, sam_state state, uint32_t length,
                              uint32_t max_matches, match *matches) {
    uint32_t count = 0, marks = 0;
    while (state != SAM_ROOT && length) {
        sam_following f;
        sam_follow(index, state, &f);
        if (f.marks != marks) {
            marks = f.marks;
            match *m = &matches[count];
            m->source = source;
            m->rank = count++;
            m->length = length;
            m->cells = model_cells(source, m->rank, length);
            m->marks = f.marks;
            m->best = f.best;
            m->best_count = f.best_count;
            m->newest = f.newest;
            m->state = state;
            m->listed = 0;
            m->all_listed = false;
            if (count == max_matches)
                break; // the next node may not be in the cache
        }
        state = sam_link(index, state);
        length = sam_node_of(index, state)->length;
    }
    return count;
}

static uint32_t corpus_matches(const corpus *c, const node *n, uint32_t max_matches, match *matches) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->corpus_count && count < max_matches; i++) {
        match *m = &matches[count];
        *m = (match){.source = RULE_CORPUS,
                     .rank = count,
                     .length = n->corpus[i].length,
                     .cells = model_cells(RULE_CORPUS, count, n->corpus[i].length),
                     .marks = n->corpus[i].high - n->corpus[i].low,
                     .newest = SAM_NO_TOKEN};
        m->listed = corpus_next(c, &n->corpus[i], MORE, m->tokens, m->counts);
        if (!m->listed)
            continue;
        m->best = m->tokens[0];
        m->best_count = m->counts[0];
        count++;
    }
    return count;
}

// Looks up the tokens that followed a match.
static void list(const rule_context *context, match *m) {
    if (m->source == RULE_CORPUS || m->best_count == m->marks)
        return;
    m->listed = sam_candidates(context->index[m->source], m->state, MORE, m->tokens, m->counts);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->listed; i++)
        sum += m->counts[i];
    m->all_listed = sum == m->marks;
}

// Whether the number of times that `token` followed a match is known without a look-up (corpus: 0 if it is not
// among the most frequent ones).
static bool is_known(const match *m, int32_t token, uint32_t *count) {
    *count = 0;
    if (token == m->best) {
        *count = m->best_count;
        return true;
    }
    for (uint32_t i = 1; i < m->listed; i++)
        if (m->tokens[i] == token) {
            *count = m->counts[i];
            return true;
        }
    if (m->all_listed || m->best_count == m->marks || m->source == RULE_CORPUS)
        return true;
    if (m->best_count + 1 == m->marks && m->newest != m->best) {
        *count = token == m->newest; // the only other one
        return true;
    }
    return false;
}

// The number of times that `token` followed a match.
static uint32_t followed(const rule_context *context, const match *m, int32_t token) {
    uint32_t count;
    if (is_known(m, token, &count))
        return count;
    const sam_index *index = context->index[m->source];
    sam_state end = sam_edge_end(index, m->state, token);
    return end == SAM_NONE ? 0 : sam_arrivals(index, end);
}

// The root of a draft: the end of the text.
static void start(draft *d) {
    const rule_context *context = d->context;
    node *n = &d->nodes[0];
    *n = (node){.kept = {.token = SAM_NO_TOKEN, .parent = NO_NODE}, .path = PATH_ONE, .draft = -1};
    memcpy(n->last, context->last, sizeof n->last);
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->state[s] = context->state[s];
        n->length[s] = context->index[s] ? context->length[s] : 0;
    }
    if (context->corpus) {
        const corpus_context *at = context->corpus_at;
        uint32_t size = 0;
        for (uint32_t length = at->length; length && n->corpus_count < MODEL_RANKS; length--) {
            corpus_match m = corpus_matched(at, length);
            if (m.high - m.low != size)
                n->corpus[n->corpus_count++] = m;
            size = m.high - m.low;
        }
    }
    d->node_count = 1;
    d->candidate_count = 0;
}

// Extends the matches of a node's parent by the node's token.
static void advance(const draft *d, node *n) {
    const node *parent = &d->nodes[n->kept.parent];
    int32_t token = n->kept.token;
    n->last[0] = token;
    for (uint32_t i = 1; i < RULE_LAST; i++)
        n->last[i] = parent->last[i - 1];
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->length[s] = parent->length[s];
        if (!parent->length[s])
            continue;
        n->state[s] = parent->state[s];
        sam_advance(d->context->index[s], &n->state[s], &n->length[s], token);
    }
    n->corpus_count = 0;
    for (uint32_t i = 0, size = 0; i < parent->corpus_count; i++) {
        corpus_match m = parent->corpus[i];
        if (!corpus_extend(d->context->corpus, &m, token) || m.high - m.low == size)
            continue;
        n->corpus[n->corpus_count++] = m;
        size = m.high - m.low;
    }
}

// ---- candidates

static uint32_t times(uint32_t path, uint32_t probability) {
    return (uint32_t)((uint64_t)path * probability / MODEL_ONE);
}

// The candidate of a node for `token`, new if need be; NULL if there is no room for it. Only the first
// `known` candidates may have this token.
static candidate *add_candidate(draft *d, node *n, uint32_t max_candidates, uint32_t known, int32_t token,
                                uint32_t source) {
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t i = 0; i < known; i++)
        if (first[i].token == token)
            return &first[i];
    if (token == SAM_NO_TOKEN || n->kept.count == max_candidates)
        return NULL;
    candidate *c = &first[n->kept.count++];
    c->token = token;
    c->source = (uint8_t)source;
    c->cells = 0;
    c->share = 0;
    memset(c->stretch, 0, sizeof c->stretch);
    return c;
}

static void add_input(const model *m, candidate *c, uint32_t cell, uint32_t input) {
    c->cell[c->cells++] = (uint16_t)cell;
    c->stretch[input] = m->stretch[model_probability(m->learned.cells[cell])];
}

// The set of weights for a node's matches and a kind of candidates.
static uint32_t weight_set(const node *n, uint32_t kind) {
    uint32_t set = model_coarse_class(n->length[RULE_REQUEST]);
    set = set * MODEL_CLASSES + model_coarse_class(n->length[RULE_GROUP]);
    set = set * 4 + (model_coarse_class(n->corpus_count ? n->corpus[0].length : 0) + 1) / 2;
    return set * MODEL_KINDS + kind;
}

// Finds a candidate's entries in the token tables, and prefetches them.
static void find_token_entries(const model *m, const node *n, candidate *c) {
    for (uint32_t order = 0; order < MODEL_TOKENS; order++) {
        c->hash[order] = (uint16_t)model_hash(order, c->token, n->last[0], n->last[1]);
        sam_prefetch(&m->learned.tokens[order][c->hash[order]]);
    }
}

// Mixes the inputs of a candidate.
static void mix(const draft *d, candidate *c) {
    const model *m = &d->model->model;
    const int32_t *weights = m->learned.weights[c->set];
    for (uint32_t order = 0; order < MODEL_TOKENS; order++) {
        uint32_t entry = m->learned.tokens[order][c->hash[order]], seen = entry & 1023;
        c->stretch[MODEL_TOKEN_INPUT + order] =
            (int16_t)(m->stretch[model_probability(entry)] * (int32_t)m->trust[seen] / 256);
    }
    c->stretch[MODEL_CONSTANT] = 128; // counts twice
    int64_t sum = (int64_t)weights[MODEL_CONSTANT] * 128;
    for (uint32_t i = 0; i < MODEL_INPUTS; i++)
        sum += (int64_t)weights[i] * c->stretch[i];
    c->probability = (uint16_t)model_squash((int32_t)(sum / 65536));
}

// Finds the most probable candidate of a node that is not drafted yet, the first on a tie.
static void find_best(node *n) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < n->kept.count; i++)
        if (n->left[i] > best) {
            best = n->left[i];
            n->best = i;
        }
    n->best_path = times(n->path, best);
}

static bool is_named(const draft *d, const node *n, int32_t token) {
    const candidate *first = &d->candidates[n->kept.first];
    for (uint32_t i = 0; i < n->kept.count; i++)
        if (first[i].token == token)
            return true;
    return false;
}

// Whether all matches in indexes are so short that followers are used as well.
static bool has_short_matches(const node *n) {
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s] > SHORT_MATCH)
            return false;
    return true;
}

// The follower of the most last tokens; if followers are not a source, the one of those that occur in a
// source: in an index, or as a match's candidate. SAM_NO_TOKEN if there is none. *cell: the cell of the other
// candidates. Not used if a match is longer than SHORT_MATCH.
static int32_t find_follower(const draft *d, const node *n, const sam_index *index, uint32_t *cell) {
    if (d->context->isolated || !has_short_matches(n))
        return SAM_NO_TOKEN;
    for (uint32_t order = MODEL_ORDERS; order--;) {
        uint32_t times;
        int32_t token = model_follow(&d->model->model, order, n->last, &times);
        if (token == SAM_NO_TOKEN)
            continue;
        if (d->context->common || is_named(d, n, token) ||
            (index && sam_child(index, SAM_ROOT, token) != SAM_NONE)) {
            *cell = model_follower_cell(order, times, false);
            return token;
        }
    }
    return SAM_NO_TOKEN;
}

// A question how often a candidate followed a match.
typedef struct {
    uint8_t candidate, match;
    sam_state end; // of the candidate's edge, SAM_NONE: there is none
} lookup;

// What names the candidates of a node and votes on them.
typedef struct {
    uint32_t match_count, lookup_count;
    uint32_t named; // candidates that a match or the follower names; the others are only frequent
    int32_t follower;
    uint32_t follower_cell; // of the other candidates
    match matches[MAX_MATCHES];
    uint32_t counts[MAX_CANDIDATES][MAX_MATCHES]; // how often a named candidate followed a match
    lookup lookups[MAX_CANDIDATES * MAX_MATCHES];
} vote;

#define INDEX(match) d->context->index[(match)->source]

// Names the candidates of a node, and begins to look up how often each followed each match. A look-up takes this step and
// the two after it, so that cache misses overlap.
static void name_candidates(draft *d, node *n, vote *v) {
    const rule_context *context = d->context;
    match *matches = v->matches;
    uint32_t count = 0;
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s])
            count +=
                index_matches(context->index[s], s, n->state[s], n->length[s], MODEL_RANKS, &matches[count]);
    if (n->corpus_count)
        count += corpus_matches(context->corpus, n, MODEL_RANKS, &matches[count]);
    v->match_count = count;
    uint32_t max_candidates = n->depth ? DEEP_CANDIDATES : MAX_CANDIDATES;
    for (uint32_t rank = 0; rank < MODEL_RANKS; rank++)
        for (uint32_t i = 0; i < count; i++)
            if (matches[i].rank == rank) {
                add_candidate(d, n, max_candidates, n->kept.count, matches[i].best, matches[i].source);
                add_candidate(d, n, max_candidates, n->kept.count, matches[i].newest, matches[i].source);
            }
    for (uint32_t i = 0; d->tree && n->path > PATH_ONE / 4 && i < count; i++) { // only where a search pays
        list(context, &matches[i]);
        for (uint32_t j = 0; j < matches[i].listed; j++)
            add_candidate(d, n, max_candidates, n->kept.count, matches[i].tokens[j], matches[i].source);
    }
    uint32_t share_source = context->index[RULE_GROUP] ? RULE_GROUP : RULE_REQUEST;
    const sam_index *shared = context->index[share_source];
    v->follower = find_follower(d, n, shared, &v->follower_cell);
    add_candidate(d, n, max_candidates, n->kept.count, v->follower,
                  context->common ? RULE_COMMON : share_source);
    v->named = n->kept.count;
    if (shared && (d->tree || !v->named)) {
        uint32_t length = n->length[share_source];
        uint32_t wanted = !d->tree ? 1 : n->depth ? (v->named ? 0 : 3) : length >= 4 ? 8 : SAM_FREQUENT;
        for (uint32_t i = 0; i < shared->frequent_count && i < wanted; i++) {
            candidate *c =
                add_candidate(d, n, max_candidates, v->named, shared->frequent[i].token, share_source);
            if (c)
                c->share = shared->frequent[i].count;
        }
    }
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++)
        find_token_entries(&d->model->model, n, &first[j]);
    for (uint32_t j = 0; j < v->named; j++)
        for (uint32_t i = count; i--;) {
            if (is_known(&matches[i], first[j].token, &v->counts[j][i]))
                continue;
            v->lookups[v->lookup_count++] = (lookup){(uint8_t)j, (uint8_t)i, SAM_NONE};
            sam_prefetch_edge(INDEX(&matches[i]), matches[i].state, first[j].token);
        }
}

// The second step of the look-ups: finds the edges of the candidates.
static void find_edges(const draft *d, const node *n, vote *v) {
    const candidate *first = &d->candidates[n->kept.first];
    for (lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++) {
        const match *m = &v->matches[q->match];
        uint32_t *counted = &v->counts[q->candidate][q->match];
        // What never followed a suffix of a match never followed the match.
        if (q->match + 1u == v->match_count || m[1].source != m->source || counted[1])
            q->end = sam_edge_end(INDEX(m), m->state, first[q->candidate].token);
        *counted = q->end != SAM_NONE;
    }
}

// The third step: counts how often the candidates followed the matches, and mixes their probabilities.
static void weigh_candidates(draft *d, const node *n, vote *v) {
    const rule_context *context = d->context;
    const model *m = &d->model->model;
    for (const lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++)
        if (q->end != SAM_NONE)
            v->counts[q->candidate][q->match] = sam_arrivals(INDEX(&v->matches[q->match]), q->end);
    const sam_index *shared = context->index[context->index[RULE_GROUP] ? RULE_GROUP : RULE_REQUEST];
    uint32_t set = weight_set(n, n->depth == 0 ? 0 : n->depth < 3 ? 1 : 2);
    uint32_t frequent_set = weight_set(n, MODEL_FREQUENT);
    uint32_t least_share = shared ? model_share_cell(0, shared->appended) : 0;
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++) {
        candidate *c = &first[j];
        c->set = (uint16_t)(j < v->named ? set : frequent_set);
        for (uint32_t i = 0; i < v->match_count && j < v->named; i++) {
            const match *a = &v->matches[i];
            add_input(m, c, a->cells + model_cell(v->counts[j][i], a->marks, c->token == a->newest),
                      a->source * MODEL_RANKS + a->rank);
        }
        if (v->follower != SAM_NO_TOKEN && j < v->named)
            add_input(m, c, v->follower_cell + (c->token == v->follower), MODEL_FOLLOWER_INPUT);
        if (shared && (d->tree || !v->match_count))
            add_input(m, c, c->share ? model_share_cell(c->share, shared->appended) : least_share,
                      MODEL_SHARE_INPUT);
        mix(d, c);
    }
}

#undef INDEX

// `count`: only the longest match that something followed names candidates, the most frequent one first. A longer string
// may stand in a source without a follower.
static void consider_count(draft *d, node *n) {
    const rule_context *context = d->context;
    match matches[RULE_MATCHED], *m = NULL;
    uint32_t length = 0; // of m
    const bool group_first = n->length[RULE_GROUP] > n->length[RULE_REQUEST];
    for (uint32_t i = 0; i < RULE_INDEXES; i++) {
        // The request wins a tie, though it comes second where more of it stands in the group.
        const uint32_t s = i == group_first ? RULE_REQUEST : RULE_GROUP, tie = group_first && i;
        if (n->length[s] + tie > length &&
            index_matches(context->index[s], s, n->state[s], n->length[s], 1, &matches[s]) &&
            matches[s].length + tie > length) {
            m = &matches[s];
            length = m->length;
        }
    }
    if (n->corpus_count && n->corpus[0].length > length &&
        corpus_matches(context->corpus, n, 1, &matches[RULE_CORPUS]) && matches[RULE_CORPUS].length > length)
        m = &matches[RULE_CORPUS];
    if (!m)
        return;
    uint32_t max_candidates = d->tree ? DEEP_CANDIDATES : 1;
    add_candidate(d, n, max_candidates, n->kept.count, m->best, m->source);
    if (d->tree) {
        add_candidate(d, n, max_candidates, n->kept.count, m->newest, m->source);
        list(context, m);
        for (uint32_t j = 0; j < m->listed; j++)
            add_candidate(d, n, max_candidates, n->kept.count, m->tokens[j], m->source);
    }
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++) {
        candidate *c = &first[j];
        add_input(&d->model->model, c,
                  m->cells + model_cell(followed(context, m, c->token), m->marks, c->token == m->newest),
                  m->source * MODEL_RANKS);
        c->probability = (uint16_t)model_probability(d->model->model.learned.cells[c->cell[0]]);
    }
}

// Considers a node in three steps, of which find_edges is the second.
static void begin_node(draft *d, node *n, vote *v) {
    n->considered = true;
    n->kept.first = (uint16_t)d->candidate_count;
    v->lookup_count = 0;
    if (d->rule == RULE_COUNT)
        consider_count(d, n);
    else
        name_candidates(d, n, v);
}

static void end_node(draft *d, node *n, vote *v) {
    if (d->rule != RULE_COUNT)
        weigh_candidates(d, n, v);
    d->candidate_count += n->kept.count;
    for (uint32_t i = 0; i < n->kept.count; i++)
        n->left[i] = d->candidates[n->kept.first + i].probability;
    find_best(n);
}

static void consider(draft *d, node *n, vote *v) {
    if (n->depth)
        advance(d, n);
    begin_node(d, n, v);
    find_edges(d, n, v);
    end_node(d, n, v);
}

// ---- drafts of `count` and `blend`

// A draft that is being built.
typedef struct {
    uint32_t k, min_prob; // min_prob: of a path, of PATH_ONE
    uint32_t size;
    bool below_min_prob; // the last token is too improbable: it is not drafted, only learned from
    bool with_lengths;
    int32_t tokens[RULE_MAX_DRAFT];
    int32_t parents[RULE_MAX_DRAFT];
    uint32_t paths[RULE_MAX_DRAFT];
    uint16_t cells[RULE_MAX_DRAFT];
    uint8_t sources[RULE_MAX_DRAFT];
    uint32_t lengths[RULE_MAX_DRAFT]; // of matches
} output;

// Whether a place of the group's index is in its history.
static bool is_past(const rule_context *context, uint32_t place) {
    return context->index[RULE_GROUP]->chunks[place / SAM_CHUNK].text < context->past;
}

// The state after the longest suffix of the match that `token` followed; SAM_NONE: none. *length, the
// match's, becomes the suffix's.
static sam_state continued(const sam_index *index, sam_state state, int32_t token, uint32_t *length) {
    sam_state child;
    while ((child = sam_child(index, state, token)) == SAM_NONE && state != SAM_ROOT) {
        state = sam_link(index, state);
        *length = sam_node_of(index, state)->length;
    }
    return child;
}

// Whether the last occurrence of `token` after a match in the group's index, or after the next shorter match
// that it followed, is in the history.
static bool followed_in_past(const rule_context *context, sam_state state, int32_t token) {
    const sam_index *index = context->index[RULE_GROUP];
    uint32_t length = 0;
    sam_state child = continued(index, state, token, &length);
    if (child == SAM_NONE)
        return false;
    uint32_t place = child & SAM_NODE ? sam_node_of(index, child)->place : child;
    return place != SAM_NONE && is_past(context, place);
}

// Tokens of a node's longest match in one source that a candidate continues; 0 if it is a follower or only
// frequent.
static uint32_t match_length(const rule_context *context, const node *n, uint32_t source,
                             const candidate *c) {
    if (source == RULE_COMMON || c->cell[0] >= MODEL_CELLS)
        return 0;
    for (uint32_t i = 0; source == RULE_CORPUS && i < n->corpus_count; i++) {
        corpus_match m = n->corpus[i];
        if (corpus_extend(context->corpus, &m, c->token))
            return n->corpus[i].length;
    }
    if (source == RULE_CORPUS || !n->length[source])
        return 0;
    uint32_t length = n->length[source];
    continued(context->index[source], n->state[source], c->token, &length);
    return length;
}

static void emit(output *o, int32_t token, int32_t parent, uint32_t path, uint32_t source, uint32_t cell,
                 uint32_t length) {
    uint32_t at = o->size++;
    o->tokens[at] = token;
    o->parents[at] = parent;
    o->paths[at] = path;
    o->sources[at] = (uint8_t)source;
    o->cells[at] = (uint16_t)cell;
    o->lengths[at] = length;
    o->below_min_prob = path < o->min_prob;
}

// The node of the token that was drafted last, the best candidate of node `from`.
static node *follow(draft *d, const node *from, const output *o) {
    node *n = &d->nodes[d->node_count++];
    n->kept = (kept_node){.token = o->tokens[o->size - 1], .parent = (uint16_t)(from - d->nodes)};
    n->path = from->best_path;
    n->draft = (int32_t)o->size - 1;
    n->depth = from->depth + 1;
    n->considered = false;
    return n;
}

static void emit_best(draft *d, output *o, node *n) {
    const candidate *c = &d->candidates[n->kept.first + n->best];
    uint32_t source = c->source;
    if (source == RULE_GROUP && d->context->past &&
        followed_in_past(d->context, n->length[RULE_GROUP] ? n->state[RULE_GROUP] : SAM_ROOT, c->token))
        source = RULE_HISTORY;
    emit(o, c->token, n->draft, n->best_path, source, c->cell[0],
         o->with_lengths ? match_length(d->context, n, c->source, c) : 0);
    n->left[n->best] = 0;
}

// A chain that is drafted in turn with others.
typedef struct {
    draft draft;
    output output;
    node *at; // the node to be considered
    vote vote;
    sam_prefetched prefetched[RULE_INDEXES];
} chain;

enum { CHAIN_STAGES = SAM_MATCH_STAGES - 1 };

// Prefetches for the next node of a chain, in stages. For the first one the pool has prefetched all but the followers
// (prefetch.h).
static void prefetch_chain(chain *c, uint32_t step) {
    const draft *d = &c->draft;
    const node *n = c->at;
    if (step == 0 && d->rule == RULE_BLEND && has_short_matches(n))
        model_prefetch_followers(&d->model->model, n->last);
    for (uint32_t s = 0; n->depth && s < RULE_INDEXES; s++)
        if (n->length[s])
            sam_prefetch_match(d->context->index[s], n->state[s], step + 1, &c->prefetched[s]);
}

// Drafts the best candidate of a chain's node, which was considered. Returns whether the chain goes on.
static bool extend(chain *c) {
    if (!c->at->best_path)
        return false;
    emit_best(&c->draft, &c->output, c->at);
    if (c->output.below_min_prob)
        return false;
    c->at = follow(&c->draft, c->at, &c->output);
    return c->output.size < c->output.k;
}

// Drafts chains in turn, a token of each, so that their cache misses overlap.
static void draft_chains(chain *chains, uint32_t count) {
    chain *left[RULE_BATCH];
    uint32_t going = 0;
    for (uint32_t i = 0; i < count; i++)
        if (chains[i].output.k)
            left[going++] = &chains[i];
    while ((count = going)) {
        for (uint32_t i = 0; i < count; i++)
            if (left[i]->at->depth)
                advance(&left[i]->draft, left[i]->at);
        for (uint32_t step = 0; count > 1 && step < CHAIN_STAGES; step++)
            for (uint32_t i = 0; i < count; i++)
                prefetch_chain(left[i], step);
        for (uint32_t i = 0; i < count; i++)
            begin_node(&left[i]->draft, left[i]->at, &left[i]->vote);
        for (uint32_t i = 0; i < count; i++)
            find_edges(&left[i]->draft, left[i]->at, &left[i]->vote);
        going = 0;
        for (uint32_t i = 0; i < count; i++) {
            end_node(&left[i]->draft, left[i]->at, &left[i]->vote);
            if (extend(left[i]))
                left[going++] = left[i];
        }
    }
}

static void draft_tree(draft *d, output *o, vote *v) {
    node *nodes = d->nodes;
    // The best path of each node; the path of the node itself is an upper bound if it is not expanded yet.
    uint32_t offers[MAX_NODES];
    offers[0] = nodes[0].path;
    while (o->size < o->k) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < d->node_count; i++)
            if (offers[i] > offers[best])
                best = i;
        if (!offers[best])
            break;
        node *n = &nodes[best];
        if (n->considered) {
            emit_best(d, o, n);
            if (o->below_min_prob)
                break;
            offers[d->node_count] = n->best_path;
            follow(d, n, o);
            find_best(n);
        } else {
            consider(d, n, v);
        }
        offers[best] = n->best_path;
    }
}

// ---- `oldest` and `newest`

// A copy of the text after one match.
typedef struct {
    uint32_t source, length;
    const int32_t *tokens;
    uint32_t left;  // of the tokens
    bool past;      // the text is in the history
    int32_t node;   // the last drafted token of the copy; -1: none yet
    uint32_t depth; // tokens up to it
    uint32_t path;  // probability of the path to it
} copy;

// The longest match of at most `length` tokens in one source, with its continuation. False if there is none.
static bool find_copy(const draft *d, uint32_t source, uint32_t length, copy *found) {
    const rule_context *context = d->context;
    if (source == RULE_CORPUS) {
        const corpus *c = context->corpus;
        for (uint32_t l = c ? smaller(context->corpus_at->length, length) : 0; l; l--) {
            corpus_match m = corpus_matched(context->corpus_at, l);
            // A corpus has no order of time: both rules take the first occurrence.
            uint32_t at = corpus_first(c, &m), end = at;
            while (end < c->size && (uint32_t)c->tokens[end] <= c->largest && end - at < RULE_MAX_DRAFT)
                end++;
            if (end > at) {
                *found = (copy){.source = source, .length = l, .tokens = c->tokens + at, .left = end - at};
                return true;
            }
        }
        return false;
    }
    const sam_index *index = context->index[source];
    sam_state state = context->state[source];
    uint32_t at = index ? context->length[source] : 0;
    for (; at && state != SAM_ROOT; state = sam_link(index, state), at = sam_node_of(index, state)->length) {
        sam_following f;
        if (at > length)
            continue;
        sam_follow(index, state, &f);
        if (!f.marks)
            continue;
        *found = (copy){.source = source, .length = at};
        found->tokens = sam_place_token(index, f.place, &found->left);
        found->past = source == RULE_GROUP && is_past(context, f.place);
        return true;
    }
    return false;
}

enum { COPIES = 8 };

// The copies of a draft: the longest match of all sources (the first source on a tie); for a tree then the
// next shorter ones.
static uint32_t find_copies(const draft *d, copy *copies) {
    uint32_t count = 0, length[RULE_MATCHED], wanted = d->tree ? COPIES : 1;
    for (uint32_t s = 0; s < RULE_MATCHED; s++)
        length[s] = UINT32_MAX;
    while (count < wanted) {
        copy longest = {0}, c;
        for (uint32_t s = 0; s < RULE_MATCHED; s++)
            if (length[s] && find_copy(d, s, length[s], &c) && c.length > longest.length)
                longest = c;
        if (!longest.length)
            break;
        longest.node = -1;
        longest.path = PATH_ONE;
        copies[count++] = longest;
        length[longest.source] = longest.length - 1;
    }
    return count;
}

// Extends the copy whose next token is most probable each time; copies with equal beginnings share them.
static void draft_copies(const draft *d, output *o) {
    copy copies[COPIES];
    uint32_t count = find_copies(d, copies);
    const uint32_t *cells = d->model->model.learned.cells;
    while (o->size < o->k) {
        copy *best = NULL;
        uint32_t best_path = 0, best_cell = 0;
        for (uint32_t i = 0; i < count; i++) {
            copy *c = &copies[i];
            if (c->depth == c->left)
                continue;
            // `depth` takes the place of a count's class.
            uint32_t cell =
                model_cells(c->source, 0, c->length) + smaller(c->depth, MODEL_COUNTS - 1) * MODEL_COUNTS * 2;
            uint32_t path = times(c->path, model_probability(cells[cell]));
            if (path > best_path) {
                best = c;
                best_path = path;
                best_cell = cell;
            }
        }
        if (!best)
            break;
        int32_t token = best->tokens[best->depth++], known = -1;
        for (uint32_t i = 0; i < o->size; i++)
            if (o->parents[i] == best->node && o->tokens[i] == token)
                known = (int32_t)i;
        if (known < 0) {
            known = (int32_t)o->size;
            emit(o, token, best->node, best_path, best->past ? RULE_HISTORY : best->source, best_cell,
                 best->length + best->depth - 1);
        }
        if (o->below_min_prob)
            break;
        best->node = known;
        best->path = o->paths[known];
    }
}

// ---- `suffix`

// A string of a source at the end of a partial draft.
typedef struct {
    uint32_t source, length;
    sam_state state;
    corpus_match at;
} string;

// The most frequent tokens after a string. Returns their number and how many tokens followed in all.
static uint32_t children(const draft *d, const string *s, int32_t *tokens, uint32_t *counts, uint32_t *all) {
    if (s->source == RULE_CORPUS) {
        *all = s->at.high - s->at.low;
        return corpus_next(d->context->corpus, &s->at, MORE, tokens, counts);
    }
    sam_following f;
    sam_follow(d->context->index[s->source], s->state, &f);
    *all = f.marks;
    return sam_candidates(d->context->index[s->source], s->state, MORE, tokens, counts);
}

static void descend(const draft *d, string *s, int32_t token) {
    if (s->source == RULE_CORPUS) {
        corpus_extend(d->context->corpus, &s->at, token);
        return;
    }
    s->length++;
    s->state = sam_near(d->context->index[s->source],
                        sam_child(d->context->index[s->source], s->state, token), &s->length);
}

typedef struct {
    string string;
    int32_t parent, token;
    uint32_t share, count, all; // share: D of the paper, of PATH_ONE
    bool drafted;
} offer;

enum { MAX_OFFERS = (RULE_MAX_DRAFT + 1) * MORE };

typedef struct {
    uint64_t score; // sum of the shares of drafted tokens
    uint32_t size;
    int32_t tokens[RULE_MAX_DRAFT], parents[RULE_MAX_DRAFT];
    uint16_t cells[RULE_MAX_DRAFT];
    uint32_t lengths[RULE_MAX_DRAFT];
} suffix_draft;

// Adds the tokens after a string to the candidates; `drafted` is the number of the draft token before them.
static uint32_t add_offers(const draft *d, const string *s, int32_t drafted, uint32_t share, offer *offers) {
    int32_t tokens[MORE];
    uint32_t counts[MORE], all, count = children(d, s, tokens, counts, &all);
    for (uint32_t i = 0; i < count; i++)
        offers[i] = (offer){.string = *s,
                            .parent = drafted,
                            .token = tokens[i],
                            .share = (uint32_t)((uint64_t)share * counts[i] / all),
                            .count = counts[i],
                            .all = all};
    return count;
}

// ExpandSpeculationTree of the paper's algorithm 1, from one string; a chain extends only its last token.
static void expand(const draft *d, const string *from, uint32_t max_size, suffix_draft *made) {
    offer offers[MAX_OFFERS];
    uint32_t count = add_offers(d, from, -1, PATH_ONE, offers);
    made->score = made->size = 0;
    while (made->size < max_size) {
        offer *best = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (!offers[i].drafted && (d->tree || offers[i].parent == (int32_t)made->size - 1) &&
                (!best || offers[i].share > best->share))
                best = &offers[i];
        if (!best || !best->share)
            break;
        best->drafted = true;
        made->score += best->share;
        made->tokens[made->size] = best->token;
        made->parents[made->size] = best->parent;
        made->cells[made->size] = (uint16_t)(model_cells(from->source, 0, best->string.length) +
                                             model_cell(best->count, best->all, false));
        made->lengths[made->size] =
            from->source == RULE_CORPUS ? best->string.at.length : best->string.length;
        made->size++;
        string next = best->string;
        uint32_t share = best->share;
        descend(d, &next, best->token);
        count += add_offers(d, &next, (int32_t)made->size - 1, share, &offers[count]);
    }
}

// GenerateCandidateTree: tries every match of every source; the best score wins, on a tie the first.
static void draft_suffix(const draft *d, output *o) {
    const rule_context *context = d->context;
    suffix_draft best = {0}, made;
    uint32_t best_source = 0;
    sam_state best_state = SAM_ROOT;
    for (uint32_t source = 0; source < RULE_MATCHED; source++) {
        string s = {.source = source};
        if (source == RULE_CORPUS)
            s.length = context->corpus ? context->corpus_at->length : 0;
        else if (context->index[source]) {
            s.length = context->length[source];
            s.state = context->state[source];
        }
        while (s.length) {
            if (source == RULE_CORPUS)
                s.at = corpus_matched(context->corpus_at, s.length);
            expand(d, &s, smaller(o->k, ALPHA * s.length), &made);
            if (made.score > best.score) {
                best = made;
                best_source = source;
                best_state = s.state;
            }
            if (source == RULE_CORPUS) {
                s.length--;
            } else {
                s.state = sam_link(context->index[source], s.state);
                s.length = sam_length(context->index[source], s.state);
            }
        }
    }
    const uint32_t *cells = d->model->model.learned.cells;
    if (best_source == RULE_GROUP && context->past && best.size &&
        followed_in_past(context, best_state, best.tokens[0]))
        best_source = RULE_HISTORY;
    for (uint32_t i = 0; i < best.size; i++) {
        uint32_t before = best.parents[i] < 0 ? PATH_ONE : o->paths[best.parents[i]];
        uint32_t path = times(before, model_probability(cells[best.cells[i]]));
        emit(o, best.tokens[i], best.parents[i], path, best_source, best.cells[i], best.lengths[i]);
        if (o->below_min_prob)
            break;
    }
}

// ---- the interface

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

void rule_record_free(rule_record *record, sam_memory *memory) {
    sam_resize(memory, record->block, record->bytes, 0);
    record->block = NULL;
    record->bytes = 0;
    record->drafted = record->kept = 0;
    memset(record->due, 0, sizeof record->due);
}

// Keeps what rule_learn needs. Returns false if there is no memory.
static bool keep(const draft *d, sam_memory *memory, const output *o, rule_record *record) {
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
        kept[i] = (kept_token){o->tokens[i], o->parents[i], o->cells[i]};
    memcpy(kept + o->size, d->candidates, candidates);
    kept_node *nodes = (kept_node *)((char *)(kept + o->size) + candidates);
    for (uint32_t i = 0; i < d->node_count; i++)
        nodes[i] = d->nodes[i].kept;
    record->drafted = o->size - o->below_min_prob;
    record->kept = o->size;
    record->due[RULE_TOKENS] = !d->context->isolated;
    record->due[RULE_CELLS] = true;
    return true;
}

// Ends a draft before the first token outside the vocabulary; in a tree the later tokens are dropped as well.
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
    record->due[RULE_CELLS] = d->rule == RULE_BLEND;
    record->due[RULE_FOLLOWERS] = d->rule == RULE_BLEND && !d->context->isolated;
    record->due[RULE_TOKENS] = false;
    memcpy(record->last, d->context->last, sizeof record->last);
    if (d->rule == RULE_COUNT)
        d->node_count = d->candidate_count = 0; // learns only from what it drafted
    end_at_foreign_token(o, d->context->vocab_size);
    if (!o->size)
        return true;
    if (!keep(d, memory, o, record)) {
        memset(record->due, 0, sizeof record->due);
        return false;
    }
    t->size = record->drafted;
    memcpy(t->tokens, o->tokens, t->size * sizeof(int32_t));
    if (t->parents)
        memcpy(t->parents, o->parents, t->size * sizeof(int32_t));
    for (uint32_t i = 0; t->scores && i < t->size; i++)
        t->scores[i] = (float)o->paths[i] / (float)PATH_ONE;
    for (uint32_t i = 0; t->match_lengths && i < t->size; i++)
        t->match_lengths[i] = (int32_t)o->lengths[i];
    return true;
}

// How many drafts of at most k tokens are made in turn: as many as fit a rule_work, or one.
static uint32_t batch_size(rule_name rule, bool tree, uint32_t k) {
    if (tree || !matches_again(rule))
        return 1;
    uint32_t fit = smaller(MAX_NODES / (k + 1), ALL_CANDIDATES / (MAX_CANDIDATES + k * DEEP_CANDIDATES));
    return smaller(fit, RULE_BATCH);
}

static void make_drafts(chain *chains, uint32_t count) {
    draft *d = &chains->draft;
    if (d->rule == RULE_SUFFIX)
        draft_suffix(d, &chains->output);
    else if (!matches_again(d->rule))
        draft_copies(d, &chains->output);
    else if (d->tree)
        draft_tree(d, &chains->output, &chains->vote);
    else
        draft_chains(chains, count);
}

uint32_t rule_draft(const rule_model *m, rule_work *work, sam_memory *memory, rule_name rule, float min_prob,
                    rule_task *tasks, uint32_t count) {
    chain chains[RULE_BATCH];
    uint32_t k = 0;
    for (uint32_t i = 0; i < count; i++)
        k = tasks[i].k > k ? tasks[i].k : k;
    bool tree = tasks->parents != NULL;
    uint32_t batch = batch_size(rule, tree, k);
    for (uint32_t from = 0; from < count; from += batch) {
        uint32_t taken = smaller(batch, count - from);
        for (uint32_t i = 0; i < taken; i++) {
            const rule_task *t = &tasks[from + i];
            chain *c = &chains[i];
            c->draft = (draft){.model = m,
                               .context = &t->context,
                               .nodes = work->nodes + i * (k + 1),
                               .candidates = work->candidates + i * (ALL_CANDIDATES / batch),
                               .rule = rule,
                               .tree = tree};
            c->output.k = t->k;
            c->output.min_prob = (uint32_t)(min_prob * (float)PATH_ONE);
            c->output.size = 0;
            c->output.below_min_prob = false;
            c->output.with_lengths = t->match_lengths != NULL;
            c->at = c->draft.nodes;
            if (matches_again(rule))
                start(&c->draft);
        }
        make_drafts(chains, taken);
        for (uint32_t i = 0; i < taken; i++)
            if (!finish(&chains[i].draft, &chains[i].output, memory, &tasks[from + i]))
                return from + i;
    }
    return count;
}

// Moves the weights of a set by the product of error and input, of which 1/4096 is taken, rounded. Inputs that a
// candidate lacks are 0 and move nothing. There are no branches, so that compilers make vectors of it.
static void move_weights(int32_t *weights, int16_t error, const int16_t *inputs) {
    for (uint32_t i = 0; i < MODEL_INPUTS; i++) {
        int32_t product = (int32_t)error * inputs[i];
        int32_t moved = weights[i] + ((product + 2048 + (product >> 31)) >> 12);
        moved = moved > MODEL_MAX_WEIGHT ? MODEL_MAX_WEIGHT : moved;
        weights[i] = moved < -MODEL_MAX_WEIGHT ? -MODEL_MAX_WEIGHT : moved;
    }
}

static void learn_cells(model *m, const candidate *c, bool outcome) {
    int16_t error = (int16_t)((outcome ? MODEL_ONE - 1 : 0) - c->probability);
    move_weights(m->learned.weights[c->set], error, c->stretch);
    for (uint32_t i = 0; i < c->cells; i++)
        model_update(&m->learned.cells[c->cell[i]], outcome);
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
    if (lesson == RULE_FOLLOWERS)
        model_prefetch_followers(&rm->model, record->last);
    if (lesson == RULE_FOLLOWERS || !record->kept)
        return;
    contents of = contents_of(record);
    for (uint32_t i = 0; i < of.candidate_count && i < MAX_CANDIDATES; i++) {
        const candidate *c = &of.candidates[i];
        if (lesson == RULE_CELLS)
            sam_prefetch(rm->model.learned.weights[c->set]);
        for (uint32_t order = 0; lesson == RULE_TOKENS && order < MODEL_TOKENS; order++)
            sam_prefetch(&rm->model.learned.tokens[order][c->hash[order]]);
    }
}

// Learns from the tokens of the draft, and counts those that are confirmed.
static void learn_drafted(model *m, rule_name rule, const rule_record *record, const contents *of,
                          const int32_t *tokens, uint32_t count, uint64_t accepted[RULE_SOURCES]) {
    int32_t at = -1; // the last confirmed draft token
    for (uint32_t i = 0; i < count; i++) {
        int32_t next = -1;
        for (uint32_t j = 0; j < record->kept; j++) {
            if (of->tokens[j].parent != at)
                continue;
            bool outcome = of->tokens[j].token == tokens[i];
            if (outcome)
                next = (int32_t)j;
            if (rule != RULE_BLEND)
                model_update(&m->learned.cells[of->tokens[j].cell], outcome);
        }
        if (next < 0 || (uint32_t)next == record->drafted)
            break;
        accepted[record->source[next]]++;
        at = next;
    }
}

void rule_learn(rule_model *rm, rule_name rule, rule_record *record, int lesson, const int32_t *tokens,
                uint32_t count, uint64_t accepted[RULE_SOURCES]) {
    model *m = &rm->model;
    if (!record->due[lesson])
        return;
    record->due[lesson] = false;
    for (uint32_t i = 0; lesson == RULE_FOLLOWERS && i < count; i++)
        model_learn_follower(m, record->last, tokens[i]);
    if (lesson == RULE_FOLLOWERS || !record->kept)
        return;
    contents of = contents_of(record);
    if (lesson == RULE_CELLS)
        learn_drafted(m, rule, record, &of, tokens, count, accepted);
    uint32_t at = 0;
    for (uint32_t i = 0; i < count && of.node_count; i++) {
        const kept_node *n = &of.nodes[at];
        for (uint32_t j = 0; j < n->count; j++) {
            const candidate *c = &of.candidates[n->first + j];
            if (lesson == RULE_CELLS)
                learn_cells(m, c, c->token == tokens[i]);
            else
                learn_tokens(m, c, c->token == tokens[i]);
        }
        uint32_t next = at + 1;
        while (next < of.node_count && !(of.nodes[next].parent == at && of.nodes[next].token == tokens[i]))
            next++;
        if (next == of.node_count)
            break;
        at = next;
    }
}
