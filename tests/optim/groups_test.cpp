// The update rule of each parameter according to optimizer.groups.
#include "optim/groups.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "core/setting_problem.h"
#include "model/decoder.h"
#include "optim/kinds.h"
#include "optim/lane.h"

namespace ring::test {
namespace {

// Updates only matrices.
class Matrices final : public UpdateRule {
 public:
  std::vector<StateKind> states() const override { return {{"u"}}; }
  bool takes(const Param& p) const override { return p.shape.size() == 2 && !p.table; }
};

class Groups : public testing::Test {
 protected:
  Groups() {
    optimizer_kinds()["matrices"] = [](const OptimizerConfig&, std::uint64_t) { return std::make_unique<Matrices>(); };
  }
  ~Groups() override { optimizer_kinds().erase("matrices"); }

  static ModelConfig model_config(std::int64_t mlp_width = 48) {
    ModelConfig c;
    c.vocab_size = 37;
    c.context = 24;
    c.layers = 2;
    c.width = 32;
    c.heads = 4;
    c.mlp = Mlp::swiglu;
    c.mlp_width = mlp_width;
    c.tied_embeddings = false;
    return c.resolved();
  }
  static OptimizerConfig config(const std::string& groups, const std::string& more = "") {
    OptimizerConfig c;
    load_config_text(c, str("{lr: 0.5, weight_decay: 0.1, ", more, "groups: ", groups, "}"), "test");
    return c;
  }
  static std::string error(const std::string& groups, std::int64_t mlp_width = 48) {
    try {
      Decoder model(model_config(mlp_width));
      const OptimizerConfig c = config(groups);
      bind_groups(c, model.parameters());
      model.parameters().lay_out();
      lanes_of(c, own_everything(model.parameters()), 0);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  static const LogicalParam& part(Decoder& model, const std::string& name, const Param** holder = nullptr) {
    for (const Param* p : model.parameters().declared())
      for (const LogicalParam& part : p->parts)
        if (part.name == name) {
          if (holder) *holder = p;
          return part;
        }
    fail("no parameter ", name);
  }
  static std::string update_of(const OptimizerConfig& c, Decoder& model, const std::string& name) {
    const Param* p = nullptr;
    const LogicalParam& found = part(model, name, &p);
    if (found.frozen) return "frozen";
    return str(optimizer_kind_of(c, *p, found), " ", lr_scale_of(c, found), " ", weight_decay_of(c, *p, found));
  }
};

TEST_F(Groups, TheLastEntryThatMatchesAParameterApplies) {
  Decoder model(model_config());
  const OptimizerConfig c = config(
      "[{match: ['blocks.*'], lr: 2}, {match: ['*.attention.w?.weight', head.weight], weight_decay: 0.25},"
      " {match: ['blocks.1.*norm*'], weight_decay: 0.5, lr: 0.25}, {match: ['embedding.*'], frozen: true}]");
  bind_groups(c, model.parameters());
  EXPECT_EQ(update_of(c, model, "blocks.0.mlp.gate.weight"), "adamw 4 0.1");
  EXPECT_EQ(update_of(c, model, "blocks.0.mlp_norm.weight"), "adamw 4 0");
  EXPECT_EQ(update_of(c, model, "blocks.0.attention.wq.weight"), "adamw 1 0.25");
  EXPECT_EQ(update_of(c, model, "blocks.1.mlp_norm.weight"), "adamw 0.5 0.5");
  EXPECT_EQ(update_of(c, model, "head.weight"), "adamw 1 0.25");
  EXPECT_EQ(update_of(c, model, "final_norm.weight"), "adamw 1 0");
  EXPECT_EQ(update_of(c, model, "embedding.tokens.weight"), "frozen");
}

TEST_F(Groups, AKindUpdatesOnlyItsParameters) {
  Decoder model(model_config());
  const OptimizerConfig c = config("[{match: ['blocks.1.mlp.*'], kind: adamw}]", "kind: matrices, ");
  bind_groups(c, model.parameters());
  EXPECT_EQ(update_of(c, model, "blocks.0.mlp.gate.weight"), "matrices 1 0.1");
  EXPECT_EQ(update_of(c, model, "blocks.1.mlp.gate.weight"), "adamw 1 0.1");
  EXPECT_EQ(update_of(c, model, "blocks.0.mlp_norm.weight"), "adamw 1 0");
  EXPECT_EQ(update_of(c, model, "head.weight"), "adamw 1 0.1");
  const std::vector<std::string> lines = describe_groups(c, (model.parameters().lay_out(), model.parameters()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "blocks.0.attention_norm.weight and 4 more (0.00016 M): adamw, lr 0.5, weight_decay 0");
}

// States hold no elements of parameters that are frozen or of a different kind, and no element is held twice.
TEST_F(Groups, LanesHoldOnlyWhatTheyUpdate) {
  Decoder model(model_config());
  const OptimizerConfig c = config(
      "[{match: ['blocks.0.mlp.*', 'blocks.1.attention.wk.*'], kind: matrices}, {match: ['embedding.*', "
      "'blocks.1.attention.wv.weight'], frozen: true}]");
  bind_groups(c, model.parameters());
  model.parameters().lay_out();
  const OwnedShard shard = own_everything(model.parameters());
  std::map<std::string, std::int64_t> held;
  for (const Lane& lane : lanes_of(c, shard, 0)) {
    std::int64_t end = 0;
    for (const ShardPiece& piece : lane.pieces()) {
      EXPECT_EQ(piece.shard_offset, end);
      end += param_aligned(piece.numel);
      held[lane.kind] += piece.numel;
    }
    EXPECT_EQ(end, lane.size);
  }
  EXPECT_EQ(held["matrices"], 3 * 32 * 48 + 32 * 32);
  const std::int64_t vectors = 5 * 32, others = 37 * 32 + 3 * 32 * 48 + (4 + 2) * 32 * 32;
  EXPECT_EQ(held["adamw"], vectors + others);
  EXPECT_EQ(model.parameters().size() - model.parameters().trained_size(), param_aligned(37 * 32))
      << "v is frozen, but q and k have gradients";
}

// The states of a parameter follow from the settings of the checkpoint, whatever settings are bound now.
TEST_F(Groups, SavedStatesFollowFromTheSavedSettings) {
  Decoder model(model_config());
  bind_groups(config("[{match: ['*.wq.*'], frozen: true}]"), model.parameters());
  const OptimizerConfig saved = config("[{match: ['*.mlp.*'], kind: matrices}, {match: ['blocks.1.*'], frozen: true}]");
  const auto states = [&](const std::string& name) {
    const Param* p = nullptr;
    const LogicalParam& found = part(model, name, &p);
    return saved_states(saved, *p, found);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(states("blocks.0.attention.wq.weight"),
            Names({"m.blocks.0.attention.wq.weight", "v.blocks.0.attention.wq.weight"}));
  EXPECT_EQ(states("blocks.0.mlp.up.weight"), Names({"u.blocks.0.mlp.up.weight"}));
  EXPECT_EQ(states("blocks.1.mlp.up.weight"), Names());
}

TEST_F(Groups, SavedStatesInFp8HaveScales) {
  Decoder model(model_config());
  const OptimizerConfig saved = config("[]", "moments: fp8, ");
  const Param* p = nullptr;
  const LogicalParam& found = part(model, "head.weight", &p);
  EXPECT_EQ(saved_states(saved, *p, found), (std::vector<std::string>{"m.head.weight", "m.head.weight:e4m3_scales",
                                                                      "v.head.weight", "v.head.weight:e4m4_scales"}));
}

TEST_F(Groups, FrozenParametersCostNoUpdate) {
  Decoder model(model_config());
  bind_groups(config("[{match: ['blocks.0.*'], frozen: true}]", "kind: muon, "), model.parameters());
  EXPECT_EQ(part(model, "blocks.0.mlp.up.weight").update_flops, 0);
  EXPECT_GT(part(model, "blocks.1.mlp.up.weight").update_flops, 0);
}

TEST_F(Groups, ErrorsAreNamed) {
  for (const char* part : {"optimizer.groups[1].match[0]: \"*.attn.*\" matches no parameter",
                           "embedding.tokens.weight, blocks.0.attention_norm.weight"})
    EXPECT_NE(error("[{match: ['blocks.*'], lr: 1}, {match: ['*.attn.*'], lr: 1}]").find(part), std::string::npos)
        << part;
  EXPECT_NE(error("[{match: ['*'], frozen: true}]").find("nothing is left to train"), std::string::npos);
  EXPECT_NE(error("[{match: ['*norm*'], kind: matrices}]").find("groups[0].kind: matrices updates none"),
            std::string::npos);
  EXPECT_NE(error("[{match: ['*'], frozen: true, lr: 1}]").find("cannot have kind, lr"), std::string::npos);
  EXPECT_EQ(error("[{match: ['*norm*'], lr: 1}, {match: ['blocks.*'], lr: 1}]"), "") << "it still has the final norm";
  EXPECT_NE(error("[{match: ['blocks.0.*', 'blocks.1.*'], lr: 1}, {match: ['blocks.*'], frozen: true}]")
                .find("optimizer.groups[0]: later entries override it"),
            std::string::npos);
  EXPECT_NE(error("[{match: [], lr: 1}]").find("match"), std::string::npos);
  EXPECT_NE(error("[{lr: 1}]").find("match"), std::string::npos);
  EXPECT_NE(error("[{match: ['*'], lr: 0}]").find("lr"), std::string::npos);
  EXPECT_NE(error("[{match: ['*'], kind: adam}]").find("kind"), std::string::npos);
}

TEST_F(Groups, AllErrorsAreNamed) {
  Decoder model(model_config());
  std::vector<SettingProblem> errors;
  bind_groups(config("[{match: [gone, 'blocks.*', lost], lr: 1}, {match: ['*.mlp.*'], lr: 1}, {match: [missing], kind: "
                     "matrices}, {match: ['*'], frozen: true}]"),
              model.parameters(), errors);
  std::vector<std::string> keys;
  for (const SettingProblem& e : errors) keys.push_back(e.text.substr(0, e.text.find(':')));
  EXPECT_EQ(keys,
            std::vector<std::string>({"optimizer.groups[0].match[0]", "optimizer.groups[0].match[2]",
                                      "optimizer.groups[1]", "optimizer.groups[2].match[0]", "optimizer.groups"}));
}

TEST_F(Groups, SettingsOfMuonBelongToMuon) {
  const auto unused = [](const OptimizerConfig& c) {
    std::vector<SettingProblem> errors;
    add_unused_settings(c, errors);
    return errors;
  };
  const std::string muon = "muon: {momentum: 0.9, nesterov: false}, ";
  const std::vector<SettingProblem> errors = unused(config("[]", muon));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].kind, SettingProblemKind::unused);
  EXPECT_EQ(errors[0].text,
            "optimizer.muon.momentum: 0.9 applies to kind: muon, but optimizer.kind is adamw and no group has that "
            "kind. Leave it out (0.95)");
  EXPECT_EQ(unused(config("[]", "muon: {momentum: 0.95}, ")).size(), 0u) << "as if it was not given";
  EXPECT_EQ(unused(config("[]", muon + "kind: muon, ")).size(), 0u);
  EXPECT_EQ(unused(config("[{match: ['*'], kind: muon}]", muon)).size(), 0u);
}

// gate and up are stored in one matrix: its 37 rows of 31 elements are not a multiple of 16.
TEST_F(Groups, PartsOfAMatrixMustBeAlignedForKernels) {
  Parameters params;
  params.add({{"gate", 0, 37, {}}, {"up", 0, 37, {}}}, 31);
  const OptimizerConfig apart = config("[{match: [up], lr: 1}]"), alike = config("[{match: ['*'], lr: 1}]");
  bind_groups(alike, params);
  params.lay_out();
  EXPECT_EQ(lanes_of(alike, own_everything(params), 0)[0].ranges.size(), 1u);
  bind_groups(apart, params);
  try {
    lanes_of(apart, own_everything(params), 0);
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("up does not start"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring::test
