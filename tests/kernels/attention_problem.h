#pragma once
// One problem of attention for every kernel of the family, on CPUs and GPUs: random inputs, the result as defined in
// fp64, and a kernel's result, from one call or from parts of the keys that are merged.

#include "kernels/attention/attention.h"
#include "tests/cases/attention_oracle.h"

namespace ring::test {

// Returns a pattern of blocks that are selected by content, up to `keep` for each block of queries.
inline Pattern content(std::int32_t block, std::int32_t keep) {
  return block_sparse(block, {{.kind = BlockRuleKind::content, .local = 1, .keep = keep}});
}

struct AttentionProblem {
  Pattern pattern = dense();
  std::vector<Span> queries, keys;
  std::int64_t query_rows = 0, key_rows = 0;  // of the tensors; some rows may be in no span
  std::int64_t heads = 4, kv_heads = 2, dim = 24;
  OracleDropout dropout = {};
  std::vector<std::int32_t> selection = {};       // bits of a selection (kept_blocks.h); empty: none
  std::vector<std::int32_t> selection_rows = {};  // rows of the BlockSelection
  std::int64_t selection_words = 0;               // 0: as many as the longest span needs

  // Words of a selection's row; true if the selection keeps row u of the keys for row t of the queries of span b.
  std::int64_t words() const;
  bool selects(std::size_t b, std::int64_t kv_head, std::int32_t t, std::int32_t u) const;
  double scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(dim))); }
};

// Returns queries and keys of the same documents, followed by `after` rows that belong to no document.
AttentionProblem problem_of(const Pattern&, const std::vector<std::int32_t>& offsets,
                            const std::vector<std::int32_t>& rows = {}, std::int64_t after = 0);

// Returns the problem with a random selection of about every second block.
AttentionProblem with_selection(AttentionProblem);
// Returns the problem restricted to these rows, in tensors of their own, with the selection of all rows.
AttentionProblem with_other_rows(AttentionProblem, const std::vector<Span>& queries, const std::vector<Span>& keys);
// Returns the problem without the selection's rows before the first query block, as a chunk of a sequence has it.
AttentionProblem without_earlier_rows(AttentionProblem);

// Returns the part of the spans within rows [first, end), counted from `first`.
std::vector<Span> part_of(std::vector<Span> spans, std::int64_t first, std::int64_t end);

// A candidate of the forward and backward slots, and its type.
struct AttentionTarget {
  Backend backend = Backend::cpu;
  std::string candidate = "blocked";
  DType dtype = DType::f32;
  bool every = true;  // true: takes every problem; false: problems that it refuses are skipped
  std::int64_t min_dim = 8;
  int threads = 3;  // CPU
};
void PrintTo(const AttentionTarget&, std::ostream*);
std::string name_of(const AttentionTarget&);  // "own_mma_bf16", "own_sm90_bf16_from_72"
bool takes(const AttentionTarget&, const AttentionProblem&);

struct AttentionInputs {
  Values q, k, v, dout;  // rounded to the type
};
AttentionInputs random_inputs(const AttentionProblem&, DType);

struct AttentionResults {
  Values out, lse, dq, dk, dv;
  bool operator==(const AttentionResults&) const = default;
};
double norm_of(const Values&);
double distance_of(const Values& a, const Values& b);  // norm of the difference; infinite if lengths differ
AttentionResults reference(const AttentionProblem&, const AttentionInputs&);
AttentionResults run(const AttentionTarget&, const AttentionProblem&, const AttentionInputs&);

// Runs the target on keys split in parts, each with tensors of its own, as devices hold them. out, lse and dq are
// carried from part to part, in this or in the reverse order. If `idle`, calls that see no key come in between.
enum class Order : std::uint8_t { ascending, descending };
AttentionResults run_in_parts(const AttentionTarget&, const AttentionProblem&, const AttentionInputs&, int parts, Order,
                              bool idle = false);

// Relative L2 errors; absolute errors of the log-sum-exp.
struct AttentionTolerance {
  double out, lse, gradient;
};
AttentionTolerance tolerance_of(const AttentionTarget&);
void expect_close(const AttentionResults& got, const AttentionResults& want, const AttentionTolerance&);
void expect_right(const AttentionTarget&, const AttentionProblem&);

}  // namespace ring::test
