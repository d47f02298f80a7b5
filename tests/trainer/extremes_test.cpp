// Every numeric setting at its extremes: either refused with its key, or read exactly and safe to derive a run from.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "engine/config.h"
#include "engine/devices.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

// Returns valid settings with one element in each list, one text per kind of attention.
const std::vector<std::string>& bases() {
  static const std::vector<std::string> texts = [] {
    const std::string head = "train: {steps: 1}\nmodel: {vocab_size: 300, attention: ";
    const std::string one = "}\ndata: {path: a.h5}\n",
                      several = "}\ndata: {mixture: [{path: a.h5, weight: [[0, 1], [5, 2]]}]}\n";
    const std::string packed = "}\ndata: {path: a.h5, packing: {documents: true}}\n";
    const auto blocks_of = [](const char* pattern) {
      return str("{kind: block_sparse, rules: [{keep: 4, pattern: ", pattern, "}]}");
    };
    return std::vector<std::string>{
        head + "{kind: dense}, attention_layers: [{layers: 0, attention: {kind: window, window: 4}}]" + several,
        head + "{kind: window, window: 4, sinks: 1}" + one,
        head + "{kind: dilated, segments: [4], rates: [1]}" + packed,
        head + "{kind: block_sparse, rules: [{local: 2, first: 1}], heads: [0]}" + one,
        head + "{kind: block_sparse, rules: [{pattern: random, density: 0.5}]}" + one,
        head + blocks_of("learned") + one,
        head + blocks_of("importance") + one,
        head + "{kind: dense}, attention_layers: [{layers: 0, attention: " + blocks_of("learned") + "}]" + one,
        head + "{kind: dense}, attention_layers: [{layers: 0, attention: " + blocks_of("importance") + "}]" + one,
        head + "{kind: dense}, mixers: [gated_delta_net], gated_delta_net: {conv_kernel: 3}" + one,
        "train: {tokens: 1000}\nmodel: {vocab_size: 300, rope: {scaling: llama3}}\ndata: {path: a.h5}\n",
        "train: {steps: 1}\nmodel: {vocab_size: 300, rope: {scaling: yarn}}\ndata: {path: a.h5}\n"};
  }();
  return texts;
}

using Numbers = std::map<std::string, config::Kind>;  // by key

void collect(const config::Node& node, const std::string& key, Numbers& numbers) {
  if (node.kind == config::Kind::integer || node.kind == config::Kind::number) numbers[key] = node.kind;
  for (const config::Field& f : node.fields) collect(f.node, key.empty() ? f.name : key + "." + f.name, numbers);
  for (std::size_t i = 0; node.kind == config::Kind::list && i < node.size(); ++i)
    collect(node.element(i), str(key, "[", i, "]"), numbers);
}

Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Config c;
  load_config_text(c, text, "base.yaml", overrides);
  return c;
}

Numbers numbers_of(const std::string& text) {
  Config c = load(text);
  Numbers numbers;
  collect(bind_config(c), "", numbers);
  return numbers;
}

const std::vector<const char*>& extremes() {
  static const std::vector<const char*> all = {"0",
                                               "-0",
                                               "1",
                                               "-1",
                                               "8",
                                               "2147483647",
                                               "2147483648",
                                               "2147483649",
                                               "-2147483648",
                                               "-2147483649",
                                               "4294967295",
                                               "4294967296",
                                               "4294967297",
                                               "9007199254740992",
                                               "9007199254740993",
                                               "9223372036854775806",
                                               "9223372036854775807",
                                               "9223372036854775808",
                                               "-9223372036854775808",
                                               "-9223372036854775809",
                                               "18446744073709551615",
                                               "18446744073709551616",
                                               "1e30",
                                               "1e308",
                                               "-1e308",
                                               "1e309",
                                               "5e-324",
                                               "1e-320",
                                               "1e-40",
                                               "0.5",
                                               "64",
                                               "1048576",
                                               "1073741824",
                                               ".nan",
                                               "nan",
                                               ".inf",
                                               "-.inf",
                                               "inf",
                                               "0x10",
                                               "1_000",
                                               ""};
  return all;
}

// Returns the value of a key in the settings, as text.
std::string value_of(Config& c, const std::string& key) {
  std::string text;
  const std::function<void(const config::Node&, const std::string&)> visit = [&](const config::Node& node,
                                                                                 const std::string& here) {
    if (here == key) text = config::to_text(node.get());
    for (const config::Field& f : node.fields) visit(f.node, here.empty() ? f.name : here + "." + f.name);
    for (std::size_t i = 0; node.kind == config::Kind::list && i < node.size(); ++i)
      visit(node.element(i), str(here, "[", i, "]"));
  };
  visit(bind_config(c), "");
  return text;
}

// Derives from the settings what a run computes before it allocates memory. The settings may be refused with an Error;
// otherwise the derived values must be valid.
void derive(const Config& asked) {
  try {
    const Config c = resolve_config(asked, 300, 1, Backend::cpu, false);
    const auto per_step = static_cast<__int128>(c.train.batch_size) * c.model.context;
    EXPECT_EQ(c.train.tokens, 0);
    EXPECT_GE(c.train.steps, asked.train.steps > 0 || asked.train.tokens > 0 ? 1 : 0);
    EXPECT_LE(c.train.steps, kMaxSteps);
    EXPECT_LE(per_step * c.train.steps, static_cast<__int128>(kMaxTokens));
    if (asked.train.tokens > 0) {
      EXPECT_GE(per_step * c.train.steps, asked.train.tokens);
      EXPECT_LT(per_step * (c.train.steps - 1), asked.train.tokens);
    }
    EXPECT_LE(static_cast<__int128>(plan_of(c, 1).micro_batch) * c.model.context, kMaxTokensAtOnce);
    EXPECT_GE(c.run.threads, 1);
    EXPECT_LE(c.run.threads, 4096);
    for (const double x : {c.optimizer.lr, c.optimizer.eps, c.model.norm_eps, c.model.init_std}) {
      EXPECT_GT(static_cast<float>(x), 0.0f) << "kernels would see 0";
      EXPECT_TRUE(std::isfinite(static_cast<float>(x)));
    }
  } catch (const Error&) {
  }
}

TEST(Extremes, EveryNumberIsRefusedOrExact) {
  std::set<std::string> accepted, all;
  for (const std::string& base : bases()) {
    const Config loaded = load(base);
    for (const auto& [key, kind] : numbers_of(base)) {
      all.insert(key);
      if (accepted.count(key)) continue;  // already accepted with another base
      for (const char* text : extremes()) {
        Config c = loaded;
        try {
          override_config(c, {key + "=" + text});
        } catch (const Error& e) {
          const std::string name = key.substr(key.find_last_of('.') + 1), message = e.what();
          EXPECT_NE(message.find(name.substr(0, name.find('['))), std::string::npos) << key << "=" << text << message;
          EXPECT_LT(message.size(), 1000u) << message;
          EXPECT_EQ(message.find("false at"), std::string::npos) << "a broken contract, no refusal: " << message;
          continue;
        }
        accepted.insert(key);
        const std::string held = value_of(c, key);
        if (kind == config::Kind::integer)
          EXPECT_EQ(std::strtold(held.c_str(), nullptr), std::strtold(text, nullptr)) << key << "=" << text;
        else
          EXPECT_EQ(std::strtod(held.c_str(), nullptr), std::strtod(text, nullptr)) << key << "=" << text;
        EXPECT_TRUE(std::isfinite(std::strtod(held.c_str(), nullptr))) << key;
        derive(c);
      }
    }
  }
  EXPECT_GT(all.size(), 55u);
  for (const std::string& key : all)
    EXPECT_TRUE(accepted.count(key)) << key << " was refused always: nothing was tried";
}

// Two settings that are valid alone may multiply to a number that overflows.
TEST(Extremes, PairsOfNumbersAreRefusedOrExact) {
  const std::string& base = bases()[2];
  const std::map<std::string, std::vector<const char*>> large = {{"train.batch_size", {"1073741824"}},
                                                                 {"train.micro_batch", {"0", "1", "1073741824"}},
                                                                 {"model.context", {"1", "1073741824"}},
                                                                 {"train.steps", {"1", "2147483647"}},
                                                                 {"train.tokens", {"0", "9007199254740992"}},
                                                                 {"train.minutes", {"1e8"}},
                                                                 {"model.layers", {"10000"}},
                                                                 {"model.width", {"1048576"}},
                                                                 {"model.heads", {"65536"}},
                                                                 {"model.head_dim", {"65536"}},
                                                                 {"model.mlp_width", {"16777216"}},
                                                                 {"model.vocab_size", {"1073741824"}},
                                                                 {"parallel.tp", {"65536"}},
                                                                 {"parallel.cp", {"65536"}},
                                                                 {"parallel.dp", {"65536"}}};
  for (const auto& [a, as] : large)
    for (const auto& [b, bs] : large)
      for (const char* x : as)
        for (const char* y : bs) {
          Config c = load(base);
          try {
            override_config(c, {str(a, "=", x), str(b, "=", y)});
          } catch (const Error& e) {
            EXPECT_EQ(std::string(e.what()).find("false at"), std::string::npos) << e.what();
            continue;
          }
          derive(c);
        }
}

std::string refusal(const std::vector<std::string>& overrides) {
  try {
    resolve_config(load(bases()[1], overrides), 300, 1, Backend::cpu, false);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Extremes, NumbersThatOnceOverflowedAreRefused) {
  EXPECT_NE(refusal({"checkpoint.keep_last=4294967297"}).find("must be in [1, 1e6], is 4294967297"), std::string::npos)
      << refusal({"checkpoint.keep_last=4294967297"});
  EXPECT_NE(refusal({"checkpoint.keep_last=3e9"}), "");
  EXPECT_NE(refusal({"parallel.cp=4294967297"}).find("must be in [0, 65536]"), std::string::npos);
  EXPECT_NE(refusal({"train.steps=0", "train.tokens=9223372036854775807"}).find("train.tokens"), std::string::npos);
  EXPECT_NE(refusal({"train.steps=0", "train.tokens=9007199254740992", "train.batch_size=1", "model.context=8"})
                .find("1 x 8 tokens"),
            std::string::npos);
  EXPECT_NE(
      refusal({"train.steps=2147483647", "train.batch_size=65536", "model.context=65536"}).find("65536 x 65536 tokens"),
      std::string::npos);
  EXPECT_NE(refusal({"train.batch_size=65536", "model.context=65536"}).find("train.micro_batch: 65536 sequences"),
            std::string::npos);
  EXPECT_EQ(refusal({"train.batch_size=65536", "model.context=65536", "train.micro_batch=32767"}).find("at once"),
            std::string::npos);
  for (const char* budget : {"1B", "1.5"})
    EXPECT_EQ(refusal({str("train.memory_budget=", budget)}),
              str("command line: train.memory_budget=", budget,
                  ": must be a share in [0, 1] or a size such as 80GB, in [2, 1e15] bytes, is ", budget));
  EXPECT_NE(refusal({"optimizer.lr=.inf"}), "");
  EXPECT_NE(refusal({"optimizer.lr=1e-320"}), "") << "0 as a float: it would train nothing";
  EXPECT_NE(refusal({"model.layers=10000", "model.width=1048576", "model.heads=65536", "model.head_dim=65536"})
                .find("parameters, but at most"),
            std::string::npos);
}

}  // namespace
}  // namespace ring
