#include "parallel/shard_plan.h"
#include "model/decoder.h"
#include "model/scopes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "core/fields.h"
#include "engine/config.h"
#include "optim/groups.h"
#include "optim/muon.h"
#include "parallel/fsdp_units.h"
#include "parallel/owned_shard.h"
#include "tests/paths.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// The shapes of a decoder, without memory.
struct Shapes {
  explicit Shapes(const ModelConfig& config, std::int64_t vocab_padding = 128) : model(config, vocab_padding) {
    model.parameters().lay_out();
  }
  const Parameters& params() const { return model.parameters(); }
  Decoder model;
};

ModelConfig named_config(const fs::path& file) {
  Config config;
  load_config(config, file.string());
  if (!config.model.vocab_size) config.model.vocab_size = 257;
  config.model.context = std::min<std::int64_t>(config.model.context, 4096);  // block patterns are still built
  return config.model;
}

std::vector<fs::path> config_files() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(source_dir() + "/configs"))
    if (entry.path().extension() == ".yaml") out.push_back(entry.path());
  return out;
}

// Expects that every element of every parameter has one owner, and that shards have only alignment gaps.
void expect_partition(const Parameters& params, const std::vector<ShardPiece>& plan, int ranks) {
  std::size_t next = 0;
  std::vector<std::int64_t> end(static_cast<std::size_t>(ranks), 0);
  for (const Param* p : params.layout()) {
    std::int64_t row = 0;
    for (; next < plan.size() && plan[next].param == p; ++next) {
      const ShardPiece& piece = plan[next];
      const std::int64_t columns = p->shape.numel() / p->shape[0];
      ASSERT_EQ(piece.first_row, row);
      ASSERT_GT(piece.rows, 0);
      ASSERT_EQ(piece.offset, p->offset + row * columns);
      ASSERT_EQ(piece.numel, piece.rows * columns);
      ASSERT_EQ(piece.offset % kParamAlign, 0);
      ASSERT_TRUE(piece.owner >= 0 && piece.owner < ranks);
      ASSERT_EQ(piece.shard_offset, end[static_cast<std::size_t>(piece.owner)]);
      end[static_cast<std::size_t>(piece.owner)] += param_aligned(piece.numel);
      row += piece.rows;
    }
    ASSERT_EQ(row, p->shape[0]) << p->parts[0].name;
  }
  ASSERT_EQ(next, plan.size());
  for (int r = 0; r < ranks; ++r) ASSERT_EQ(shard_size(plan, r), end[static_cast<std::size_t>(r)]);
}

// Expects that parameters are cut only between logical parameters, except for tables.
void expect_whole_matrices(const std::vector<ShardPiece>& plan) {
  for (const ShardPiece& piece : plan)
    for (const LogicalParam& part : piece.param->parts) {
      const PieceRows r = rows_of(piece, part);
      EXPECT_TRUE(piece.param->table || r.rows == 0 || r.rows == part.rows) << part.name;
    }
}

TEST(ShardPlan, SharesAreEqualForTheNamedConfigs) {
  for (const fs::path& file : config_files()) {
    const Shapes shapes(named_config(file));
    const std::int64_t all = shapes.params().size();
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const std::vector<ShardPiece> plan = plan_shards(shapes.params(), ranks);
      expect_partition(shapes.params(), plan, ranks);
      expect_whole_matrices(plan);
      for (int r = 0; r < ranks; ++r) {
        const double share = static_cast<double>(shard_size(plan, r)) / static_cast<double>(all);
        // Models with few layers have too few matrices to divide evenly.
        const double bound = all > 50'000'000 ? 1.02 / ranks : 1.0 / ranks + 0.025;
        EXPECT_LE(share, bound) << file << " rank " << r << " of " << ranks;
      }
    }
  }
}

// Each square block of an FP8 weight has a single owner. Weights whose logical parameters have whole blocks are divided
// as without FP8.
TEST(ShardPlan, BlocksOfFp8WeightsHaveOneOwner) {
  for (const std::int64_t width : {64, 256}) {
    ModelConfig config = tiny_config().model;
    config.width = width;
    Decoder plain(config), blocks(config);
    bind_linears(blocks, {"fp8_blocks", {}}, 1);
    plain.parameters().lay_out(), blocks.parameters().lay_out();
    const std::vector<ShardPiece> plan = plan_shards(blocks.parameters(), 2);
    expect_partition(blocks.parameters(), plan, 2);
    std::size_t whole = 0;
    for (const ShardPiece& p : plan)
      if (p.param->format) {
        EXPECT_EQ(p.first_row % 128, 0) << p.param->parts[0].name;
        whole += p.rows == p.param->shape[0] && p.param->parts.size() > 1;
      }
    const auto layers = static_cast<std::size_t>(config.layers);
    EXPECT_EQ(whole, width == 64 ? 2 * layers : layers) << "qkv if heads are narrow, and gate and up, of 96 rows each";
    EXPECT_EQ(plan.size() + (width == 64 ? 3 : 1) * layers, plan_shards(plain.parameters(), 2).size());
  }
}

// Each rank has its share of the update FLOPs, up to one matrix.
TEST(ShardPlan, MatricesThatAreUpdatedAsAWholeAreDividedByTheirFlops) {
  OptimizerConfig muon;
  muon.kind = "muon";
  for (const fs::path& file : config_files()) {
    Decoder model(named_config(file), 128);
    bind_groups(muon, model.parameters());
    model.parameters().lay_out();
    const double elements = static_cast<double>(model.parameters().size());
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const std::vector<ShardPiece> plan = plan_shards(model.parameters(), ranks);
      expect_partition(model.parameters(), plan, ranks);
      expect_whole_matrices(plan);
      std::vector<double> flops(static_cast<std::size_t>(ranks), 0);
      double all = 0, largest = 0;
      for (const ShardPiece& p : plan)
        for (const LogicalPiece& l : logical_pieces(p)) {
          flops[static_cast<std::size_t>(p.owner)] += l.part->update_flops;
          all += l.part->update_flops;
          largest = std::max(largest, l.part->update_flops);
        }
      EXPECT_GT(all, 0) << file;
      for (int r = 0; r < ranks; ++r) {
        EXPECT_LE(flops[static_cast<std::size_t>(r)], all / ranks + largest) << file << " rank " << r;
        const double share = static_cast<double>(shard_size(plan, r)) / elements;
        EXPECT_LE(share, elements > 50e6 ? 1.02 / ranks : 1.0 / ranks + 0.025) << file << " " << r << " of " << ranks;
      }
    }
  }
}

// One wide matrix has as many elements as four square ones, but updates of the square ones cost three times as much.
TEST(ShardPlan, FlopsOfUpdatesCountBeforeElements) {
  Parameters params;
  params.add({{"wide", 0, 64, {}}}, 1024);
  for (const char* name : {"a", "b", "c", "d"}) params.add({{name, 0, 128, {}}}, 128);
  OptimizerConfig muon;
  muon.kind = "muon";
  const auto most = [&](const OptimizerConfig& c) {
    bind_groups(c, params);
    params.lay_out();
    std::vector<double> flops(2, 0);
    for (const ShardPiece& p : plan_shards(params, 2))
      flops[static_cast<std::size_t>(p.owner)] += newton_schulz_flops(p.rows, p.numel / p.rows, 5);
    return std::max(flops[0], flops[1]) / (flops[0] + flops[1]);
  };
  EXPECT_GT(most({}), 0.7);
  EXPECT_LT(most(muon), 0.56);
}

TEST(ShardPlan, FrozenParametersAreDividedSeparately) {
  Decoder model(tiny_config().model);
  OptimizerConfig some;
  some.groups = {{.match = {"embedding.*", "blocks.0.*"}, .frozen = true}};
  bind_groups(some, model.parameters());
  model.parameters().lay_out();
  const std::int64_t trained = model.parameters().trained_size(), all = model.parameters().size();
  EXPECT_LT(trained, all);
  for (const int ranks : {1, 2, 4}) {
    const std::vector<ShardPiece> plan = plan_shards(model.parameters(), ranks);
    expect_partition(model.parameters(), plan, ranks);
    std::int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) {
      sum += trained_size(plan, r);
      EXPECT_LE(static_cast<double>(trained_size(plan, r)), (1.0 / ranks + 0.05) * static_cast<double>(trained));
      EXPECT_LE(static_cast<double>(shard_size(plan, r)), (1.0 / ranks + 0.05) * static_cast<double>(all));
    }
    EXPECT_EQ(sum, trained);
    for (const ShardPiece& p : plan) EXPECT_EQ(p.offset >= trained, p.param->is_frozen());
  }
}

TEST(ShardPlan, IsTheSameForEveryRank) {
  const Shapes a(tiny_config().model), b(tiny_config().model);
  const std::vector<ShardPiece> x = plan_shards(a.params(), 3), y = plan_shards(b.params(), 3);
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].offset, y[i].offset);
    EXPECT_EQ(x[i].owner, y[i].owner);
    EXPECT_EQ(x[i].shard_offset, y[i].shard_offset);
  }
}

// A table of odd width is cut at aligned addresses; each rank's rows of the table are contiguous.
TEST(ShardPlan, TablesOfAnyWidthAreDivided) {
  Parameters params;
  Param& table = params.add({{"table", 0, 1001, {}}}, 20);
  table.table = true;
  params.add({{"a", 0, 3, {}}, {"b", 0, 5, {}}}, 20);
  params.lay_out();
  for (const int ranks : {2, 5, 8}) {
    const std::vector<ShardPiece> plan = plan_shards(params, ranks);
    expect_partition(params, plan, ranks);
    std::set<int> owners;
    for (const ShardPiece& p : plan)
      if (p.param == &table) {
        EXPECT_TRUE(owners.insert(p.owner).second);
      }
    EXPECT_EQ(owners.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(plan.size(), owners.size() + 1) << "a begins at row 3, which is not aligned: it stays with b";
  }
}

TEST(ShardPlan, PiecesHaveRowsOfLogicalParameters) {
  Parameters params;
  params.add({{"a", 0, 4, {}}, {"b", 0, 6, {}}}, 16, {.row_multiple = 12});
  params.lay_out();
  const Param& p = *params.layout()[0];
  const ShardPiece piece{&p, 2, 10, p.offset + 32, 160, 0, 0};
  const PieceRows a = rows_of(piece, p.parts[0]), b = rows_of(piece, p.parts[1]);
  EXPECT_EQ(a.first, 2);
  EXPECT_EQ(a.rows, 2);
  EXPECT_EQ(a.at, 0);
  EXPECT_EQ(b.first, 0);
  EXPECT_EQ(b.rows, 6);  // the rows after it are padding
  EXPECT_EQ(b.at, 32);
  EXPECT_EQ(rows_of({&p, 0, 4, p.offset, 64, 0, 0}, p.parts[1]).rows, 0);
}

// Ranges cover the same elements as pieces, in the flat layout and in the shard; an owner of everything has two ranges.
TEST(OwnedShard, RangesJoinContiguousPieces) {
  const Shapes shapes(tiny_config().model);
  const std::vector<ShardPiece> plan = plan_shards(shapes.params(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    OwnedShard h;
    h.pieces = pieces_of_rank(plan, rank);
    const std::vector<UpdateRange> ranges = h.ranges();
    EXPECT_LE(ranges.size(), h.pieces.size());
    std::size_t at = 0;
    for (const UpdateRange& range : ranges) {
      const ShardPiece& first = range.first;
      EXPECT_EQ(first.offset, h.pieces[at].offset);
      for (; at < h.pieces.size() && h.pieces[at].offset < first.offset + range.numel; ++at) {
        const ShardPiece& piece = h.pieces[at];
        EXPECT_EQ(piece.offset - first.offset, piece.shard_offset - first.shard_offset);
        EXPECT_LE(piece.offset + piece.numel, first.offset + range.numel);
        EXPECT_EQ(piece.param->decay, range.decay);
      }
    }
    EXPECT_EQ(at, h.pieces.size());
  }
  OwnedShard all;
  all.pieces = unsharded_plan(shapes.params());
  for (const UpdateRange& range : all.ranges())
    EXPECT_EQ(range.first.offset >= shapes.params().matrices_begin(), range.decay);
  EXPECT_EQ(all.ranges().size(), 2u) << "vectors and matrices";
}

TEST(FsdpUnits, BuffersAreReusedByLaterUnits) {
  for (const bool tied : {false, true}) {
    ModelConfig config = tiny_config().model;
    config.layers = 3;
    config.tied_embeddings = tied;
    config.positions = Positions::learned;
    const Shapes shapes(config);
    const std::vector<ShardPiece> plan = plan_shards(shapes.params(), 2);
    const FsdpUnits u = make_fsdp_units(shapes.model, plan);
    EXPECT_EQ(u.parts, (std::vector<ScopeId>{{scopes::embedding},
                                             block_scope(0),
                                             block_scope(1),
                                             block_scope(2),
                                             {scopes::final_norm},
                                             {scopes::loss_head}}));
    ASSERT_EQ(u.units.size(), tied ? 5u : 6u);
    EXPECT_EQ(u.buffers.size(), 4u);
    EXPECT_EQ(u.units_of_part.back(), std::vector<std::size_t>{tied ? 0u : 5u});
    EXPECT_EQ(u.units[0].last_part, tied ? 5u : 0u);
    EXPECT_EQ(u.units[0].buffer, u.units[u.units_of_part.back()[0]].buffer);
    EXPECT_EQ(u.units[1].buffer, u.units[3].buffer);
    EXPECT_NE(u.units[1].buffer, u.units[2].buffer);
    for (std::size_t i = 0; i + 1 < u.parts.size(); ++i)  // a part's parameters arrive while the previous part runs
      for (const std::size_t a : u.units_of_part[i])
        for (const std::size_t b : u.units_of_part[i + 1]) EXPECT_NE(u.units[a].buffer, u.units[b].buffer);
    std::size_t pieces = 0;
    std::int64_t elements = 0;
    for (const FsdpUnit& unit : u.units) {
      std::int64_t end = 0;
      for (const FsdpUnitPiece& p : unit.pieces) {
        EXPECT_GE(p.offset_in_buffer, end);
        end = p.offset_in_buffer + p.piece.numel;
        elements += p.piece.numel;
        ++pieces;
      }
      EXPECT_LE(end, unit.size);
      EXPECT_LE(unit.size, u.buffers[static_cast<std::size_t>(unit.buffer)]);
    }
    EXPECT_EQ(pieces, plan.size());
    std::int64_t all = 0;
    for (const Param* p : shapes.params().layout()) all += p->shape.numel();
    EXPECT_EQ(elements, all);
  }
}

}  // namespace
}  // namespace ring::test
