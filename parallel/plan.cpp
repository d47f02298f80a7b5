#include "parallel/plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/checked.h"
#include "core/counted.h"
#include "kernels/attention/blocks.h"
#include "model/attention/importance/importance.h"
#include "model/patterns.h"
#include "parallel/misfit.h"

namespace ring {
namespace {

template <class... Parts>
[[noreturn]] void fail_for_world(const Parts&... parts) {
  throw WorldSizeError(str(parts...));
}

std::string listed(const std::vector<std::int64_t>& numbers) {  // e.g. "1, 2, 4 or 8"
  std::string out;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    out += str(i == 0 ? "" : i + 1 == numbers.size() ? " or " : ", ", numbers[i]);
  return out;
}

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

std::string start_others(std::int64_t processes) {
  return str("start ", counted(processes, "process"), ": ringmaster launch --nproc-per-node ", processes,
             " -- train ..");
}

void check_slices_of_model(const ParallelConfig& c, const ModelConfig& m, int world) {
  const std::vector<std::int64_t> possible = possible_slices(m);
  if (std::ranges::count(possible, c.tp) > 0) return;
  if (m.qk_norm && m.qk_norm_over == QkNormOver::projection)
    fail("parallel.tp: ", c.tp, " is not supported with model.qk_norm_over: projection, whose norms cover all heads. ",
         "Use parallel.cp, parallel.dp with ZeRO, or parallel.pp");
  std::vector<std::int64_t> here;
  const std::int64_t others = std::max<std::int64_t>(c.cp, 1) * std::max<std::int64_t>(c.dp, 1) * c.pp;
  for (const std::int64_t n : possible)
    if (world % (n * others) == 0) here.push_back(n);
  const std::string states =
      has_gated_delta_net(m) ? str(", model.gated_delta_net.key_heads = ", m.gated_delta_net.key_heads) : "";
  fail("parallel.tp: ", c.tp, " does not divide model.heads = ", m.heads, ", model.kv_heads = ", m.kv_heads, states,
       " and model.mlp_width = ", m.mlp_width, ", which tensor parallelism shards. This model allows ",
       here.empty() ? listed(possible) : str(listed(here), " on ", counted(world, "process")));
}

// Returns the given degrees except dp, e.g. "parallel.cp: 2 x parallel.tp: 3".
std::string given_degrees(const ParallelConfig& c) {
  std::string text;
  for (const auto& [name, degree] : {std::pair{"pp", c.pp}, {"cp", c.cp}, {"tp", c.tp}})
    if (degree > 1) text += str(text.empty() ? "" : " x ", "parallel.", name, ": ", degree);
  return text;
}

// Returns the values of one degree that would fit if the other degrees stay as they are.
std::string what_fits(const ParallelConfig& c, const ModelConfig& m, int world) {
  const std::int64_t cp = std::max<std::int64_t>(c.cp, 1), besides_tp = cp * c.pp, besides_cp = c.tp * c.pp;
  std::string text;
  if (c.cp > 1 && world % besides_cp == 0)
    text += str("parallel.cp can be ", listed(divisors(world / besides_cp)), " here; ");
  if (c.tp > 1 && world % besides_tp == 0) {
    std::vector<std::int64_t> slices = possible_slices(m);
    std::erase_if(slices, [&](std::int64_t n) { return world / besides_tp % n != 0; });
    text += str("parallel.tp can be ", listed(slices), " here; ");
  }
  return text.empty() ? "" : text + "or ";
}

// Computes the degree that the settings leave open from the other degrees: cp if it is 0, else dp. world: number of
// processes of each island.
void fill_degrees(ParallelPlan& p, const ModelConfig& m, int world) {
  const ParallelConfig& c = p.config;
  const std::int64_t fixed = std::max<std::int64_t>(c.cp, 1) * c.tp * c.pp;
  if (world % fixed != 0)
    fail_for_world(given_degrees(c), " does not divide the ", counted(world, "process"), " of ",
                   p.islands > 1 ? "each island; " : "this run; ", what_fits(c, m, world),
                   start_others(fixed * p.islands));
  const std::int64_t rest = world / fixed;
  p.tp = narrow<int>(c.tp);
  if (c.cp == 0 && c.dp > 0 && rest % c.dp == 0) {
    p.dp = narrow<int>(c.dp);
    p.cp = narrow<int>(rest / c.dp);
    return;
  }
  const std::int64_t dp = c.dp == 0 ? (c.cp == 0 ? 1 : rest) : c.dp;
  if (c.cp != 0 ? dp != rest : rest % dp != 0)
    fail_for_world("parallel.dp: ", c.dp, fixed > 1 ? " x " + given_degrees(c) : "", " needs ",
                   counted(dp * fixed, "process"), ", but ", world, world == 1 ? " was" : " were", " started",
                   p.islands > 1 ? " for each island: " : ": ", start_others(dp * fixed * p.islands),
                   ", or set parallel.dp to ", c.cp != 0 ? str(rest) : listed(divisors(rest)),
                   ", or to 0 to use what is left");
  p.dp = narrow<int>(dp);
  p.cp = narrow<int>(c.cp == 0 ? rest / dp : c.cp);
}

// Returns the number of model copies, over all islands, that process different sequences.
int replicas(const ParallelPlan& p) { return p.islands * p.dp; }

// Throws WorldSizeError if the micro-batch does not divide each replica's share of a step with `sequences` sequences.
// common: the greatest common divisor of a replica's shares in all steps.
void check_share(const ParallelPlan& p, const BatchSize& b, std::int64_t sequences, std::int64_t common) {
  const std::int64_t share = sequences / replicas(p);
  if (share % p.micro_batch == 0) return;
  const std::string given = b.micro_batch ? str(p.micro_batch) : str("0 (", p.micro_batch, ", of the smallest step)");
  fail_for_world("train.micro_batch: ", given, " does not divide the ", counted(share, "sequence"),
                 " of each replica (train.batch_size = ", sequences, ", ", counted(replicas(p), "replica"),
                 "). Set it to ", listed(divisors(common)),
                 b.micro_batch == 0 ? ""
                                    : str(b.others.empty() ? ", or train.batch_size" : ", or all batch sizes",
                                          " to a multiple of ", replicas(p) * p.micro_batch));
}

void share_batch(ParallelPlan& p, const BatchSize& b) {
  std::vector<std::int64_t> all = b.others;
  all.push_back(b.sequences);
  std::int64_t common = 0;
  for (const std::int64_t sequences : all) {
    if (sequences % replicas(p))
      fail_for_world(
          "train.batch_size: ", counted(sequences, "sequence"), " cannot be divided among ", replicas(p),
          " replicas (parallel.dp", p.islands > 1 ? " in each of parallel.islands" : "", "). Set it to a multiple of ",
          replicas(p) * std::max<std::int64_t>(1, b.micro_batch),
          b.micro_batch > 1 ? str(", so that train.micro_batch = ", b.micro_batch, " divides each share") : "");
    common = std::gcd(common, sequences / replicas(p));
  }
  p.micro_batch = b.micro_batch ? b.micro_batch : std::ranges::min(all) / replicas(p);
  for (const std::int64_t sequences : all) check_share(p, b, sequences, common);
  p.micro_batches = b.sequences / replicas(p) / p.micro_batch;
}

const char* chunk_name(const ParallelPlan& p) { return p.config.pp_slices > 1 ? "slice" : "chunk"; }

// Throws Error if tp does not divide the tokens of a micro-batch that each rank of cp holds: tensor parallelism shards
// these tokens between sublayers.
void check_tokens_of_slices(const ParallelPlan& p, const ModelConfig& m) {
  for (int r = 0; r < p.cp_layout.ranks(); ++r)
    if (const std::int64_t tokens = p.micro_batch * p.cp_layout.tokens_of_rank(r); tokens % p.tp)
      fail("parallel.tp: ", p.tp, " does not divide the ", tokens, " tokens of a micro-batch",
           p.in_chunks ? str(" in ", chunk_name(p), " ", r)
           : p.cp > 1  ? str(" on rank ", r, " of cp")
                       : "",
           " (train.micro_batch = ", p.micro_batch, ", model.context = ", m.context, ", parallel.cp = ", p.cp,
           "). Change one of them");
}

// Throws Error if a rank of cp would get no tokens of a chunk or slice. remedy: e.g. "Raise train.sequence_chunk".
void check_slices_of_chunks(const ParallelPlan& p, const std::string& setting, const char* remedy) {
  const std::vector<ContextLayout> slices = slices_of_parts(p.cp_layout, p.cp, p.tp);
  for (std::size_t chunk = 0; chunk < slices.size(); ++chunk)
    for (int r = 0; r < p.cp; ++r)
      if (slices[chunk].tokens_of_rank(r) == 0)
        fail(setting, ": ", chunk_name(p), " ", chunk, " has ", counted(slices[chunk].length(), "token"),
             ", of which rank ", r, " of parallel.cp: ", p.cp, " would receive none",
             p.tp > 1 ? str(" (slice lengths must be multiples of parallel.tp: ", p.tp, ")") : "", ". ", remedy);
}

bool has_pools(const ModelConfig& m) {
  return std::ranges::any_of(attentions_of(m), [](const AttentionConfig* a) { return !a->pools.empty(); });
}

bool selects_blocks(const ModelConfig& m) {
  return std::ranges::any_of(patterns_of(m), [](const Pattern& p) { return p.selects(); });
}

// Returns true if any layer selects blocks, or learns or measures which blocks to keep.
bool selects(const ModelConfig& m) {
  return selects_blocks(m) || std::ranges::any_of(attentions_of(m), [&](const AttentionConfig* a) {
           return learns_blocks(*a) || uses_importance(*a, m.kv_heads);
         });
}

bool measures_importance(const ModelConfig& m) {
  return std::ranges::any_of(attentions_of(m),
                             [&](const AttentionConfig* a) { return uses_importance(*a, m.kv_heads); });
}

std::int64_t kv_heads_of_slice(const ParallelPlan& p, const ModelConfig& m) { return m.kv_heads / p.tp; }

// "4 (model.kv_heads: 8, parallel.tp: 2)": the KV heads that the ranks of cp can share.
std::string kv_heads_text(const ParallelPlan& p, const ModelConfig& m) {
  return str(kv_heads_of_slice(p, m), " (model.kv_heads: ", m.kv_heads, p.tp > 1 ? str(", parallel.tp: ", p.tp) : "",
             ")");
}

// Resolves an automatic schedule for models that select blocks or have pools. With all_to_all each rank has whole
// sequences, so it selects and pools locally. If the heads cannot be divided, the ring is used, which gathers block
// means and pools. It is also used for rounded messages, which all_to_all does not have.
void choose_schedule(ParallelPlan& p, const ModelConfig& m) {
  ContextSchedule& schedule = p.config.cp_schedule;
  if (p.cp == 1 || schedule != ContextSchedule::automatic || (!selects(m) && !has_pools(m))) return;
  const bool divide = kv_heads_of_slice(p, m) % p.cp == 0 && p.config.cp_messages == ContextMessages::exact;
  schedule = divide ? ContextSchedule::all_to_all : ContextSchedule::ring;
}

// Throws Error if parallel.pp_order does not fit the number of parts in a stage.
void check_pipeline_order(const ParallelPlan& p) {
  const ParallelConfig& c = p.config;
  if (c.pp_parts > 1 && p.pp == 1)
    fail("parallel.pp_parts: ", c.pp_parts, " parts in each stage need several stages, but parallel.pp is 1. Set ",
         "parallel.pp_parts: 1, or parallel.pp to the number of stages");
  if (p.pp == 1 || c.pp_order == PipelineOrder::automatic) return;
  if ((c.pp_order == PipelineOrder::interleaved) != (c.pp_parts > 1))
    fail("parallel.pp_order: ",
         c.pp_order == PipelineOrder::interleaved  ? "interleaved runs several parts"
         : c.pp_order == PipelineOrder::eager_1f1b ? "eager_1f1b runs one part"
                                                   : "1f1b runs one part",
         " of the model in each stage, but parallel.pp_parts is ", c.pp_parts, ". Set parallel.pp_parts: ",
         c.pp_parts > 1 ? "1, or parallel.pp_order: interleaved" : "2 or more, or parallel.pp_order: 1f1b");
}

// Throws Error if other settings do not allow parallel.pp_slices. Call even if the run has no stages.
void check_pipeline_slices(const ParallelPlan& p) {
  const ParallelConfig& c = p.config;
  if (c.pp_slices == 1) return;
  const std::string setting = str("parallel.pp_slices: ", c.pp_slices);
  if (p.pp == 1)
    fail(setting,
         " requires pipeline stages, but parallel.pp is 1. Set parallel.pp_slices: 1, or parallel.pp to the number of ",
         "stages. Without stages, use train.sequence_chunk to split sequences");
  if (c.pp_parts > 1)
    fail(setting, " requires one model part per stage, but parallel.pp_parts is ", c.pp_parts,
         ". Set one of the two to 1");
  if (p.micro_batch > 1)
    fail(setting, " divides one sequence at a time, but train.micro_batch is ", p.micro_batch, ". Set it to 1");
}

// Throws WorldSizeError if interleaved stages cannot divide the micro-batches of a step.
void check_micro_batches_of_stages(const ParallelPlan& p, const BatchSize& b) {
  const ParallelConfig& c = p.config;
  if (p.pp == 1 || c.pp_parts == 1) return;
  std::vector<std::int64_t> all = b.others;
  all.push_back(b.sequences);
  for (const std::int64_t sequences : all)
    if (const std::int64_t micro_batches = sequences / p.dp / p.micro_batch; micro_batches % p.pp)
      fail_for_world("parallel.pp_parts: ", c.pp_parts, " parts in each of ", p.pp,
                     " stages (parallel.pp) need a multiple of ", p.pp,
                     " micro-batches in a step, but train.batch_size = ", sequences, " gives each of ",
                     counted(p.dp, "replica"), " ", micro_batches, " of train.micro_batch = ", p.micro_batch,
                     ". Change one of these two settings, or set parallel.pp_parts: 1");
}

// Throws Error unless parallel.pp_division gives every part of the model at least one block.
void check_division(const ParallelPlan& p, const ModelConfig& m) {
  const std::vector<std::int64_t>& division = p.config.pp_division;
  if (division.empty()) return;
  const std::string setting = "parallel." + division_text(division), remedy = "set parallel.pp_division: []";
  if (p.pp == 1)
    fail(setting, " divides the model among pipeline stages, but parallel.pp is 1. Set parallel.pp, or ", remedy);
  const std::int64_t parts = p.pp * p.config.pp_parts,
                     blocks = std::accumulate(division.begin(), division.end(), std::int64_t{0});
  if (std::ssize(division) != parts)
    fail(setting, " has ", counted(std::ssize(division), "number"), ", but parallel.pp: ", p.pp,
         p.config.pp_parts > 1 ? str(" x parallel.pp_parts: ", p.config.pp_parts) : "", " makes ", parts,
         " parts. Give the number of blocks of each part, or ", remedy);
  if (blocks != m.layers)
    fail(setting, " adds up to ", blocks, " blocks, but model.layers is ", m.layers, ". Change the numbers, or ",
         remedy);
}

// Throws Error if the model cannot be divided into the stages.
void check_stages(const ParallelPlan& p, const ModelConfig& m, const BatchSize& b) {
  check_pipeline_order(p);
  check_pipeline_slices(p);
  check_division(p, m);
  const ParallelConfig& c = p.config;
  const std::string setting = str("parallel.pp: ", p.pp);
  if (p.pp == 1) return;
  if (p.pp * c.pp_parts > m.layers)
    fail(setting, c.pp_parts > 1 ? str(" x parallel.pp_parts: ", c.pp_parts) : "", " makes ", p.pp * c.pp_parts,
         " parts of at least one block each, but model.layers is ", m.layers, ". Lower parallel.pp or .pp_parts");
  if (m.tied_embeddings)
    fail(setting,
         " has the embedding in the first stage and the head in the last one, but model.tied_embeddings: true ",
         "makes them one matrix. Set model.tied_embeddings: false");
  if (b.sequence_chunk > 0 && b.sequence_chunk < m.context)
    fail(setting, " does not support train.sequence_chunk, which is ", b.sequence_chunk,
         ". Set it to 0, and split long ", "sequences with parallel.pp_slices or parallel.cp");
  if (selects(m) || has_pools(m))
    fail(setting, " supports neither model.attention.rules with pattern: content, learned or importance nor ",
         "model.attention.pools, which share data between blocks. Use another pattern, or set parallel.pp: 1");
  if (c.islands > 1 || c.local_steps > 0 || c.compress != GradientCompression::none)
    fail(setting,
         " supports neither parallel.local_steps nor parallel.compress. Leave them out, or set parallel.pp: 1");
}

// A process of tensor parallelism has only some channels of the inputs of wo and down, whose masks it cannot compute.
void check_adapters(const ParallelPlan& p, const ModelConfig& m) {
  const bool by_columns = m.lora.adapts("wo") || m.lora.adapts("down");
  if (p.tp > 1 && m.lora.dropout > 0 && by_columns)
    fail("parallel.tp: ", p.tp, " shards the inputs of wo and down, for which model.lora.dropout: ", m.lora.dropout,
         " is not supported. Set it to 0, leave wo and down out of model.lora.targets, or set parallel.tp: 1");
}

void lay_out_context(ParallelPlan& p, const ModelConfig& m, bool packed) {
  p.cp_layout = p.cp == 1 ? ContextLayout{ContextLayoutKind::contiguous, m.context, 1}
                          : context_layout(p.config, m, m.context, p.cp, packed);
  for (int r = 0; r < p.cp; ++r)
    if (p.cp_layout.tokens_of_rank(r) == 0)
      fail("parallel.cp: ", p.cp, " ranks share sequences of ", m.context, " tokens in pieces, but rank ", r,
           " receives none. Lower parallel.cp or lengthen model.context");
}

std::int64_t longest_part(const ContextLayout& layout) {
  std::int64_t longest = 0;
  for (int part = 0; part < layout.ranks(); ++part) longest = std::max(longest, layout.tokens_of_rank(part));
  return longest;
}

// Throws Error if a chunk would end within a block of a pattern that selects blocks by the means of whole blocks.
void check_blocks_of_chunks(const ContextLayout& chunks, const std::vector<Pattern>& patterns,
                            const std::string& setting) {
  std::int64_t unit = 1;
  for (const Pattern& p : patterns)
    if (p.selects()) unit = std::lcm(unit, std::int64_t{p.blocks->block()});
  for (int chunk = 0; chunk < chunks.ranks(); ++chunk)
    if (chunks.chunks(chunk).front().begin % unit)
      fail(setting, " would divide blocks of ", unit, " tokens between chunks, but the patterns content and learned ",
           "need the means of whole blocks. Set it to at least ", 2 * unit, ", or, if model.context is a multiple of ",
           unit, ", to at least ", unit);
}

// Chooses all_to_all for ranks that share chunks: each rank then stores the keys of its heads. Throws Error if other
// settings do not allow it. without: the setting that turns chunks off, such as "train.sequence_chunk: 0".
void share_chunks(ParallelPlan& p, const ModelConfig& m, const std::string& setting, const char* without) {
  ContextSchedule& schedule = p.config.cp_schedule;
  const std::string with = str(setting, " with parallel.cp: ", p.cp);
  if (schedule != ContextSchedule::automatic && schedule != ContextSchedule::all_to_all)
    fail(with, " needs parallel.cp_schedule: all_to_all, but it is ",
         schedule == ContextSchedule::ring     ? "ring"
         : schedule == ContextSchedule::hybrid ? "hybrid"
                                               : "gather",
         ". Set it to all_to_all or auto",
         kv_heads_of_slice(p, m) % p.cp ? str(", and parallel.cp to a divisor of the KV heads, ", kv_heads_text(p, m))
                                        : "");
  if (kv_heads_of_slice(p, m) % p.cp)
    fail(with, " shares the KV heads among the ranks of cp (parallel.cp_schedule: all_to_all), but ",
         kv_heads_text(p, m), " cannot be divided among ", p.cp, ". Set parallel.cp to a divisor, or ", without);
  if (p.config.cp_messages != ContextMessages::exact)
    fail(with, " uses parallel.cp_schedule: all_to_all, whose messages are exact, but parallel.cp_messages is ",
         to_string(p.config.cp_messages), ". Set it to exact");
  const bool zigzag = p.config.cp_layout == ContextLayoutChoice::zigzag;
  if (zigzag || p.config.cp_layout == ContextLayoutChoice::balanced)
    fail(with, " gives each rank contiguous tokens of each chunk, but parallel.cp_layout is ",
         zigzag ? "zigzag" : "balanced", ". Set it to auto");
  schedule = ContextSchedule::all_to_all;
}

// Divides sequences into slices, which pass through the pipeline stages one after another. Throws Error if the layout
// does not support slices.
void lay_out_slices(ParallelPlan& p, const ModelConfig& m) {
  const std::int64_t slices = p.config.pp_slices;
  if (slices == 1) return;
  const std::string setting = str("parallel.pp_slices: ", slices);
  if (slices > m.context)
    fail(setting, " is more than the ", m.context, " tokens of a sequence (model.context). Lower parallel.pp_slices");
  if (p.cp > 1) share_chunks(p, m, setting, "parallel.pp_slices: 1");
  p.in_chunks = true;
  p.cp_layout = {ContextLayoutKind::contiguous, m.context, narrow<int>(slices),
                 context_align(patterns_of(m), m.context, slices)};
  check_slices_of_chunks(p, setting, "Lower parallel.pp_slices");
}

// Divides sequences into chunks that are computed one after another. Throws Error if the model or the layout does not
// allow it.
void lay_out_chunks(ParallelPlan& p, const ModelConfig& m, std::int64_t tokens) {
  if (tokens == 0 || tokens >= m.context) return;
  const std::string setting = str("train.sequence_chunk: ", tokens);
  if (p.micro_batch > 1)
    fail(setting, " computes one sequence at a time, but train.micro_batch is ", p.micro_batch, ". Set it to 1");
  if (measures_importance(m) || has_pools(m))
    fail(setting, " supports neither model.attention.rules with pattern: importance, which measures attention over ",
         "whole sequences, nor model.attention.pools. Set train.sequence_chunk: 0, or use another pattern");
  if (p.cp > 1) share_chunks(p, m, setting, "train.sequence_chunk: 0");
  constexpr std::int64_t kMaxChunks = 4096;
  std::vector<Pattern> patterns = patterns_of(m);
  std::ranges::stable_partition(patterns, &Pattern::selects);  // their blocks are aligned first
  p.in_chunks = true;
  // Chunks begin at multiples of the patterns' blocks and segments, so that some may be longer than others.
  for (std::int64_t chunks = (m.context + tokens - 1) / tokens; chunks <= kMaxChunks; ++chunks) {
    p.cp_layout = {ContextLayoutKind::contiguous, m.context, narrow<int>(chunks),
                   context_align(patterns, m.context, chunks)};
    if (longest_part(p.cp_layout) > tokens) continue;
    check_blocks_of_chunks(p.cp_layout, patterns, setting);
    return check_slices_of_chunks(p, setting, "Raise train.sequence_chunk");
  }
  fail(setting, " would need more than ", kMaxChunks, " chunks for model.context: ", m.context, ". Raise it");
}

// Throws Error if the model needs something that hybrid does not have: a rank has the rows of a node for its heads
// only, so it can neither select nor measure for its own rows.
void check_hybrid(const ParallelPlan& p, const ModelConfig& m) {
  if (selects(m))
    fail("parallel.cp_schedule: hybrid does not support model.attention.rules with pattern: content, learned or ",
         "importance. Set parallel.cp_schedule: ring, gather or all_to_all, or use another pattern");
  if (p.config.cp_ranks_per_node > 0) check_ranks_on_node(p, m, narrow<int>(p.config.cp_ranks_per_node));
}

void check_schedule(const ParallelPlan& p, const ModelConfig& m) {
  const ParallelConfig& c = p.config;
  const bool turns = c.cp_schedule == ContextSchedule::ring || c.cp_schedule == ContextSchedule::automatic ||
                     c.cp_schedule == ContextSchedule::hybrid;
  if (turns && c.cp_ranks_per_node > 0 && p.cp % c.cp_ranks_per_node)
    fail("parallel.cp_ranks_per_node: ", c.cp_ranks_per_node, " ranks on each node do not divide the ", p.cp,
         " processes of parallel.cp. Set a divisor of ", p.cp, ", or 0 to use the actual placement");
  if (p.cp > 1 && c.cp_schedule == ContextSchedule::all_to_all && c.cp_messages != ContextMessages::exact)
    fail(
        "parallel.cp_messages: ", to_string(c.cp_messages), " rounds the messages of ring and gather, but ",
        "parallel.cp_schedule is all_to_all. Set parallel.cp_schedule: ring, gather or auto, or parallel.cp_messages: ",
        "exact");
  if (p.cp > 1 && c.cp_schedule == ContextSchedule::all_to_all && kv_heads_of_slice(p, m) % p.cp)
    fail("parallel.cp_schedule: all_to_all shares the KV heads among the ranks of cp, but ", kv_heads_text(p, m),
         " cannot be divided among ", p.cp, ". Use ring or gather, or a parallel.cp that divides them");
  if (p.cp > 1 && c.cp_schedule == ContextSchedule::hybrid) check_hybrid(p, m);
}

}  // namespace

ParallelPlan plan_degrees(const ParallelConfig& c, const ModelConfig& m, const BatchSize& b, int world) {
  ParallelPlan p{.config = c, .islands = std::max(1, narrow<int>(c.islands)), .pp = narrow<int>(c.pp)};
  if (world % p.islands != 0)
    fail_for_world("parallel.islands: ", p.islands, " does not divide the ", counted(world, "process"),
                   " of this run. Set it to ", listed(divisors(world)), ", or ", start_others(p.islands));
  check_slices_of_model(c, m, world / p.islands);
  fill_degrees(p, m, world / p.islands);
  share_batch(p, b);
  check_micro_batches_of_stages(p, b);
  return p;
}

ParallelPlan make_plan(const ParallelConfig& c, const ModelConfig& m, const BatchSize& b, int world) {
  ParallelPlan p = plan_degrees(c, m, b, world);
  check_stages(p, m, b);
  check_adapters(p, m);
  choose_schedule(p, m);
  lay_out_context(p, m, b.packed);
  lay_out_chunks(p, m, b.sequence_chunk);
  lay_out_slices(p, m);
  check_tokens_of_slices(p, m);
  check_schedule(p, m);
  return p;
}

bool supports_hybrid(const ModelConfig& m, std::int64_t tp, std::int64_t ranks_on_node) {
  return !selects(m) && m.kv_heads % (tp * ranks_on_node) == 0;
}

void check_ranks_on_node(const ParallelPlan& p, const ModelConfig& m, int ranks) {
  if (p.cp == 1 || p.config.cp_schedule != ContextSchedule::hybrid || kv_heads_of_slice(p, m) % ranks == 0) return;
  fail("parallel.cp_schedule: hybrid shares the KV heads among the ", ranks, " ranks of cp on each node, but ",
       kv_heads_text(p, m), " cannot be divided among ", ranks, ". Use parallel.cp_schedule: ring, or set ",
       "parallel.cp_ranks_per_node to a divisor of the KV heads and of parallel.cp: ", p.cp);
}

std::string ParallelPlan::text() const {
  std::string out;
  const char* const hybrid = cp > 1 && config.cp_schedule == ContextSchedule::hybrid ? " hybrid" : "";
  const std::string stages = config.pp_parts > 1    ? str(" x ", config.pp_parts, " parts")
                             : config.pp_slices > 1 ? str(", ", config.pp_slices, " slices")
                                                    : "";
  for (const auto& [name, degree, more] : {std::tuple<const char*, int, std::string>{"islands", islands, ""},
                                           {"pp", pp, stages},
                                           {"dp", dp, ""},
                                           {"cp", cp, hybrid},
                                           {"tp", tp, ""}})
    if (degree > 1) out += str(out.empty() ? "" : ", ", name, " ", degree, more);
  return config.zero > 0 && !out.empty() ? str(out, ", zero ", config.zero) : out;
}

// With packed documents, a rank's positions in the row do not determine how many pairs the rank computes. Late queries
// see more pools than early ones, so zigzag balances them. all_to_all shards heads, so the layout of rows does not
// matter for it.
ContextLayout context_layout(const ParallelConfig& c, const ModelConfig& m, std::int64_t length, int ranks,
                             bool packed) {
  ContextLayoutChoice choice = c.cp_layout;
  if (choice == ContextLayoutChoice::automatic && c.cp_schedule != ContextSchedule::all_to_all) {
    if (packed && length % ranks == 0)
      choice = ContextLayoutChoice::balanced;
    else if (has_pools(m))
      choice = ContextLayoutChoice::zigzag;
  }
  return choose_layout(choice, patterns_of(m), m.kv_heads, length, ranks);
}

MeshLayout mesh_layout(const ParallelPlan& p, Device device) {
  return {.axes = {{"island", p.islands},
                   {"pp", p.pp, AxisTransfers::beside_kernels},
                   {"dp", p.dp},
                   {"cp", p.cp, AxisTransfers::beside_kernels},
                   {"tp", p.tp, AxisTransfers::overlap_if_copy_engine}},
          .unions = {kDataAxes},
          .device = device};
}

std::unique_ptr<Mesh> mesh_of_one() { return Mesh::join(WorkerEnvironment{}, {}, mesh_layout({}, {})); }

}  // namespace ring
