// Every settings key in turn differs on one rank of two. Each key is refused by name, unless it may differ between
// ranks.
#include "engine/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>

#include "core/fields.h"
#include "job/store.h"

namespace ring {
namespace {

using config::Kind;
using config::Node;

// Keys that may differ between ranks, listed by hand. A key that joins this list changes no number, or the ranks
// compare its effect instead (corpora, block files and the device).
const std::set<std::string> kOwn = {"run.threads",
                                    "run.device",
                                    "run.tuning",
                                    "data.path",
                                    "data.mixture[0].path",
                                    "data.mixture[1].path",
                                    "data.prefetch",
                                    "train.log_interval",
                                    "train.activation_offload_bytes",
                                    "model.attention.rules[0].file",
                                    "model.attention_layers[0].attention.rules[0].file"};

Config sample() {
  Config c;
  c.data.mixture = {{"a.h5", 1}, {"b.h5", 2}};
  c.model.attention.rules.resize(1);
  c.model.attention_layers.resize(1);
  c.model.attention_layers[0].attention.rules.resize(1);
  c.optimizer.groups = {{{"*"}, "adamw", 1.0, 0.5, false}};
  return c;
}

void alter_scalar(Node& node) {
  const config::Value value = node.get();
  if (node.kind == Kind::choice) {
    for (const std::string& name : node.choices)
      if (config::Value(name) != value) return (void)node.set(name);
  } else if (const auto* flag = std::get_if<bool>(&value)) {
    node.set(!*flag);
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    node.set(*integer + 1);
  } else if (const auto* number = std::get_if<double>(&value)) {
    node.set(std::nextafter(*number, 1e9));  // the smallest possible difference
  } else if (node.kind == Kind::integer) {
    node.set(std::int64_t{0});  // the value was a word, such as auto
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    node.set(*text + "x");
  } else {
    FAIL() << "an unset optional";
  }
}

// Changes leaf number `at`, counted from 0, and returns its key; "" if there are fewer leaves.
std::string change_leaf(Node node, const std::string& key, int& at) {
  const bool sections = node.kind == Kind::list && !node.prototype().fields.empty();
  if (node.kind == Kind::section) {
    for (config::Field& f : node.fields)
      if (std::string found = change_leaf(f.node, key.empty() ? f.name : key + "." + f.name, at); !found.empty())
        return found;
    return "";
  }
  if (sections) {
    for (std::size_t i = 0; i < node.size(); ++i)
      if (std::string found = change_leaf(node.element(i), str(key, "[", i, "]"), at); !found.empty()) return found;
    return "";
  }
  if (node.kind == Kind::choice && node.choices.size() == 1) return "";  // there is no other choice
  if (at-- != 0) return "";
  if (node.kind == Kind::list)
    node.reset(node.size() + 1);
  else
    alter_scalar(node);
  return key;
}

std::string refusal(Store& store, int rank, const Topic& topic, const Facts& facts) {
  try {
    agree(store, rank, 2, topic, facts, Timeout(10'000));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Agreement, EveryKeyThatDiffersOnOneRankIsRefusedByName) {
  const StoreServer server({"127.0.0.1", 0}, "c");
  const auto zero = connect_store(server.endpoint(), "c", Timeout(5000)),
             one = connect_store(server.endpoint(), "c", Timeout(5000));
  int keys = 0, refused = 0;
  std::set<std::string> own;
  for (;; ++keys) {
    Config changed = sample();
    int at = keys;
    const std::string key = change_leaf(bind_config(changed), "", at);
    if (key.empty()) break;
    ASSERT_NE(to_yaml(changed), to_yaml(sample())) << key;
    Topic topic = settings_topic();
    topic.name = key;
    std::string errors[2];
    std::thread other([&] { errors[1] = refusal(*one, 1, topic, facts_of_start(changed, Backend::cpu, {})); });
    errors[0] = refusal(*zero, 0, topic, facts_of_start(sample(), Backend::cpu, {}));
    other.join();
    EXPECT_EQ(errors[0], errors[1]);
    if (errors[0].empty()) {
      own.insert(key);
      continue;
    }
    ++refused;
    EXPECT_NE(errors[0].find("\n  " + key + ": "), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find(" on rank 0; "), std::string::npos) << errors[0];
  }
  EXPECT_EQ(own, kOwn);
  EXPECT_EQ(refused, keys - static_cast<int>(kOwn.size()));
  EXPECT_GT(refused, 100);
  RecordProperty("keys", keys);
  RecordProperty("refused", refused);
}

TEST(Agreement, ListsDevicesAndOptionsAreCompared) {
  Config longer = sample();
  longer.data.mixture.push_back({"c.h5", 1});
  EXPECT_NE(facts_of_start(longer, Backend::cpu, {}), facts_of_start(sample(), Backend::cpu, {}));
  EXPECT_NE(facts_of_start(sample(), Backend::cuda, {}), facts_of_start(sample(), Backend::cpu, {}));
  EXPECT_NE(facts_of_start(sample(), Backend::cpu, {}, {{"--fresh", "given"}}),
            facts_of_start(sample(), Backend::cpu, {}, {{"--fresh", "not given"}}));
  CommOptions without;
  without.copy_engines = false;
  EXPECT_NE(facts_of_start(sample(), Backend::cpu, without), facts_of_start(sample(), Backend::cpu, {}));
}

}  // namespace
}  // namespace ring
