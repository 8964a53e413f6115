// SPDX-License-Identifier: Apache-2.0
//
// `blend`: the matches of all sources name candidates for the token after a node, and vote on them.

#include "rule_blend.h"

enum { SHORT_MATCH = 4 }; // successors are used only if no match has more tokens

// The candidate of a node for `token`, or NULL.
static candidate *find_candidate(const draft *d, const node *n, int32_t token) {
    candidate *first = &d->candidates[n->first];
    for (uint32_t i = 0; i < n->count; i++)
        if (first[i].token == token)
            return &first[i];
    return NULL;
}

// Finds a node's candidate for `token`, or adds it with this source. NULL: there is no room for it, or no token.
static candidate *add_candidate(draft *d, node *n, uint32_t max_candidates, int32_t token, uint32_t source) {
    candidate *c = find_candidate(d, n, token);
    if (c)
        return c;
    if (token == SAM_NO_TOKEN || n->count == max_candidates)
        return NULL;
    c = &d->candidates[n->first + n->count++];
    c->token = token;
    c->source = (uint8_t)source;
    c->bins = 0;
    c->share = 0;
    memset(c->stretch, 0, sizeof c->stretch);
    return c;
}

// Adds the probability that a bin holds to the inputs of a candidate.
static void add_input(const model *m, candidate *c, uint32_t bin, uint32_t input) {
    c->bin[c->bins++] = (uint16_t)bin;
    c->stretch[input] = m->stretch[model_probability(m->learned.bins[bin])];
}

// The set of weights for a node's matches and a kind of candidates.
static uint32_t weight_set(const node *n, uint32_t kind) {
    uint32_t set = model_coarse_class(n->length[RULE_REQUEST]);
    set = set * MODEL_CLASSES + model_coarse_class(n->length[RULE_GROUP]);
    set =
        set * MODEL_CORPUS_CLASSES + (model_coarse_class(n->corpus_count ? n->corpus[0].length : 0) + 1) / 2;
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

// Whether all matches of a node in indexes are so short that successors are used as well.
static bool uses_successors(const node *n) {
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s] > SHORT_MATCH)
            return false;
    return true;
}

// Finds the successor of the longest context, or SAM_NO_TOKEN if there is none. If successors are not a source, it
// must occur in a source of the request: in the index `shared`, or as a match's candidate.
static void find_successor(const draft *d, const node *n, const sam_index *shared, vote *v) {
    v->successor = SAM_NO_TOKEN;
    if (d->context->isolated || !uses_successors(n))
        return;
    for (uint32_t order = MODEL_ORDERS; order--;) {
        uint32_t times;
        int32_t token = model_find_successor(&d->model->model, order, n->last, &times);
        if (token == SAM_NO_TOKEN)
            continue;
        if (d->context->common || find_candidate(d, n, token) ||
            (shared && sam_child(shared, SAM_ROOT, token) != SAM_NONE)) {
            v->successor = token;
            v->successor_order = order;
            v->successor_times = times;
            return;
        }
    }
}

// The source whose index tells how frequent a token is.
static uint32_t share_source(const rule_context *context) {
    return context->index[RULE_GROUP] ? RULE_GROUP : RULE_REQUEST;
}

static void find_matches(const draft *d, const node *n, vote *v) {
    const rule_context *context = d->context;
    uint32_t count = 0;
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s])
            count += match_index(context->index[s], s, n->state[s], n->length[s], &v->matches[count]);
    if (n->corpus_count)
        count += match_corpus(context->corpus, n, &v->matches[count]);
    v->match_count = count;
}

// Names candidates by matches: the best and the newest token of each, the longest matches first.
static void name_by_matches(draft *d, node *n, const vote *v, uint32_t max_candidates) {
    const match *end = v->matches + v->match_count;
    for (uint32_t rank = 0; rank < MODEL_RANKS; rank++)
        for (const match *m = v->matches; m < end; m++)
            if (m->rank == rank) {
                add_candidate(d, n, max_candidates, m->best, m->source);
                add_candidate(d, n, max_candidates, m->newest, m->source);
            }
}

// Adds the most frequent token overall where nothing else names a candidate.
static void add_frequent(draft *d, node *n) {
    const uint32_t source = share_source(d->context);
    const sam_index *shared = d->context->index[source];
    if (shared && shared->frequent.count && !n->count)
        add_candidate(d, n, 1, shared->frequent.token, source)->share = shared->frequent.count;
}

#define INDEX(match) d->context->index[(match)->source]

// Prefetches what tells how often each named candidate followed each match, unless that is known already.
static void begin_lookups(const draft *d, const candidate *first, vote *v) {
    v->lookup_count = 0;
    for (uint32_t j = 0; j < v->named; j++)
        for (uint32_t i = v->match_count; i--;) {
            const match *m = &v->matches[i];
            if (match_knows(m, first[j].token, &v->counts[j][i]))
                continue;
            v->lookups[v->lookup_count++] = (lookup){(uint8_t)j, (uint8_t)i, SAM_NONE};
            sam_prefetch_edge(INDEX(m), m->state, first[j].token);
        }
}

// The candidates of a node are considered in three steps, each of which reads what the one before it has prefetched.
// The first names them, and begins to look up how often each followed each match.
static void name_candidates(draft *d, node *n, vote *v) {
    const uint32_t max_candidates = n->depth ? DEEP_CANDIDATES : MAX_CANDIDATES;
    const uint32_t source = share_source(d->context);
    find_matches(d, n, v);
    name_by_matches(d, n, v, max_candidates);
    find_successor(d, n, d->context->index[source], v);
    add_candidate(d, n, max_candidates, v->successor, d->context->common ? RULE_COMMON : source);
    v->named = n->count;
    add_frequent(d, n);
    candidate *first = &d->candidates[n->first];
    for (uint32_t j = 0; j < n->count; j++)
        find_token_entries(&d->model->model, n, &first[j]);
    begin_lookups(d, first, v);
}

// The second finds the edges of the candidates.
static void find_edges(const draft *d, const node *n, vote *v) {
    const candidate *first = &d->candidates[n->first];
    for (lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++) {
        const match *m = &v->matches[q->match];
        uint32_t *counted = &v->counts[q->candidate][q->match];
        // What never followed a suffix of a match never followed the match.
        if (q->match + 1u == v->match_count || m[1].source != m->source || counted[1])
            q->end = sam_edge_end(INDEX(m), m->state, first[q->candidate].token);
        *counted = q->end != SAM_NONE;
    }
}

// The third counts how often the candidates followed the matches, and mixes their probabilities.
static void weigh_candidates(draft *d, const node *n, vote *v) {
    const rule_context *context = d->context;
    const model *m = &d->model->model;
    for (const lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++)
        if (q->end != SAM_NONE)
            v->counts[q->candidate][q->match] = sam_occurrences(INDEX(&v->matches[q->match]), q->end);
    const sam_index *shared = context->index[share_source(context)];
    uint32_t set = weight_set(n, n->depth == 0 ? 0 : n->depth < 3 ? 1 : 2);
    uint32_t frequent_set = weight_set(n, MODEL_FREQUENT);
    uint32_t least_share = shared ? model_share_bin(0, shared->appended) : 0;
    candidate *first = &d->candidates[n->first];
    for (uint32_t j = 0; j < n->count; j++) {
        candidate *c = &first[j];
        c->set = (uint16_t)(j < v->named ? set : frequent_set);
        for (uint32_t i = 0; i < v->match_count && j < v->named; i++) {
            const match *a = &v->matches[i];
            add_input(m, c, match_bin(a, c->token, v->counts[j][i]), a->source * MODEL_RANKS + a->rank);
        }
        if (v->successor != SAM_NO_TOKEN && j < v->named)
            add_input(m, c,
                      model_successor_bin(v->successor_order, v->successor_times, c->token == v->successor),
                      MODEL_SUCCESSOR_INPUT);
        if (shared && !v->match_count)
            add_input(m, c, c->share ? model_share_bin(c->share, shared->appended) : least_share,
                      MODEL_SHARE_INPUT);
        mix(d, c);
    }
}

#undef INDEX

void blend_start(draft *d) {
    const rule_context *context = d->context;
    node *n = &d->nodes[0];
    *n = (node){.token = SAM_NO_TOKEN, .path = PATH_ONE};
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

// Extends the matches of the node before a node by the node's token.
static void advance(const draft *d, node *n) {
    const node *before = n - 1;
    int32_t token = n->token;
    n->last[0] = token;
    for (uint32_t i = 1; i < RULE_LAST; i++)
        n->last[i] = before->last[i - 1];
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->length[s] = before->length[s];
        if (!before->length[s])
            continue;
        n->state[s] = before->state[s];
        sam_advance(d->context->index[s], &n->state[s], &n->length[s], token);
    }
    n->corpus_count = 0;
    for (uint32_t i = 0, size = 0; i < before->corpus_count; i++) {
        corpus_match m = before->corpus[i];
        if (!corpus_extend(d->context->corpus, &m, token) || m.high - m.low == size)
            continue;
        n->corpus[n->corpus_count++] = m;
        size = m.high - m.low;
    }
}

static void end_node(draft *d, node *n, vote *v) {
    weigh_candidates(d, n, v);
    d->candidate_count += n->count;
    uint32_t best = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t probability = d->candidates[n->first + i].probability;
        if (probability > best) {
            best = probability;
            n->best = i;
        }
    }
    n->best_path = times(n->path, best);
}

// Tokens of a node's longest match in one source that a candidate continues; 0 if it is a successor or only
// frequent.
static uint32_t match_length(const rule_context *context, const node *n, uint32_t source,
                             const candidate *c) {
    if (source == RULE_COMMON || c->bin[0] >= MODEL_BINS)
        return 0;
    for (uint32_t i = 0; source == RULE_CORPUS && i < n->corpus_count; i++) {
        corpus_match m = n->corpus[i];
        if (corpus_extend(context->corpus, &m, c->token))
            return n->corpus[i].length;
    }
    if (source == RULE_CORPUS || !n->length[source])
        return 0;
    uint32_t length = n->length[source];
    match_continued(context->index[source], n->state[source], c->token, &length);
    return length;
}

// The node of the token that was drafted last, the best candidate of node `from`.
static node *follow(draft *d, const node *from, const output *o) {
    node *n = &d->nodes[d->node_count++];
    n->token = o->tokens[o->size - 1];
    n->first = d->candidate_count;
    n->count = 0;
    n->path = from->best_path;
    n->depth = from->depth + 1;
    return n;
}

static void emit_best(const draft *d, output *o, const node *n) {
    const candidate *c = &d->candidates[n->first + n->best];
    uint32_t source = c->source;
    if (source == RULE_GROUP && d->context->past &&
        match_followed_in_past(d->context, n->length[RULE_GROUP] ? n->state[RULE_GROUP] : SAM_ROOT, c->token))
        source = RULE_HISTORY;
    emit(o, c->token, n->best_path, source, c->bin[0],
         o->with_lengths ? match_length(d->context, n, c->source, c) : 0);
}

enum { CHAIN_STAGES = SAM_MATCH_STAGES - 1 };

// Prefetches for the next node of a chain, in stages. For the first one the pool has prefetched all but the successors
// (prefetch.h).
static void prefetch_chain(chain *c, uint32_t step) {
    const draft *d = &c->draft;
    const node *n = c->at;
    if (step == 0 && uses_successors(n))
        model_prefetch_successors(&d->model->model, n->last);
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

void blend_chains(chain *chains, uint32_t count) {
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
            name_candidates(&left[i]->draft, left[i]->at, &left[i]->vote);
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
