// GGUF files, read by a reader that the test implements from the format's description.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "evaluate/session.h"
#include "interchange/gguf/export.h"
#include "tests/interchange/published.h"

namespace ring::test {
namespace {

using Json = nlohmann::json;

struct FileTensor {
  std::vector<std::uint64_t> dims;  // the fastest dimension first
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
};

class GgufFile {
 public:
  explicit GgufFile(const fs::path& file) : bytes_(read_text(file)) {
    EXPECT_EQ(take(4), "GGUF");
    EXPECT_EQ(number<std::uint32_t>(), 3u);
    const auto tensor_count = number<std::uint64_t>(), keys = number<std::uint64_t>();
    for (std::uint64_t i = 0; i < keys; ++i) {
      const std::string key = text();
      EXPECT_FALSE(metadata.contains(key)) << key << " is there twice";
      metadata[key] = value(number<std::uint32_t>());
    }
    for (std::uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    data_ = (at_ + 31) / 32 * 32;
  }

  Json metadata;
  std::map<std::string, FileTensor> tensors;
  std::vector<std::string> order;

  std::size_t data_bytes() const { return bytes_.size() - data_; }
  std::string raw(const std::string& name, std::size_t size) const {
    return bytes_.substr(data_ + tensors.at(name).offset, size);
  }
  std::vector<float> floats(const std::string& name) const {
    EXPECT_EQ(tensors.at(name).type, 0u) << name;
    std::size_t count = 1;
    for (const std::uint64_t d : tensors.at(name).dims) count *= d;
    std::vector<float> values(count);
    std::memcpy(values.data(), raw(name, 4 * count).data(), 4 * count);
    return values;
  }

 private:
  std::string take(std::size_t size) {
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class T>
  T number() {
    T n;
    std::memcpy(&n, take(sizeof(T)).data(), sizeof(T));
    return n;
  }
  std::string text() { return take(number<std::uint64_t>()); }
  Json value(std::uint32_t type) {
    switch (type) {
      case 4: return number<std::uint32_t>();
      case 5: return number<std::int32_t>();
      case 6: return number<float>();
      case 7: return number<char>() != 0;
      case 8: return text();
      default: EXPECT_EQ(type, 9u);
    }
    const auto of = number<std::uint32_t>();
    Json list = Json::array();
    for (auto left = number<std::uint64_t>(); left > 0; --left) list.push_back(value(of));
    return list;
  }
  void read_tensor() {
    const std::string name = text();
    FileTensor t;
    for (auto dims = number<std::uint32_t>(); dims > 0; --dims) t.dims.push_back(number<std::uint64_t>());
    t.type = number<std::uint32_t>();
    t.offset = number<std::uint64_t>();
    EXPECT_LT(name.size(), 64u);
    EXPECT_TRUE(tensors.emplace(name, t).second) << name;
    order.push_back(name);
  }

  std::string bytes_;
  std::size_t at_ = 0, data_ = 0;
};

class Gguf : public testing::Test {
 protected:
  using Change = std::function<void(ModelConfig&)>;

  fs::path path(const std::string& name) const { return folder_.path() / name; }
  // Exports the model to a new file.
  GgufFile exported(const Change& change = {}, std::optional<GgufType> type = {}) {
    write(change);
    const fs::path file = path(str("model", ++files_, ".gguf"));
    result_ = export_to_gguf(path("run").string(), file.string(), {.type = type, .stopped = {}});
    return GgufFile(file);
  }
  void write(const Change& change) {
    Config c = tiny_config();
    if (change) change(c.model);
    c.model = c.model.resolved();
    c.data.path = "none";
    fs::create_directories(path("run"));
    fs::remove_all(path("run") / "checkpoints");
    for (const char* name : {"config.yaml", "tokenizer.rmt"}) fs::remove(path("run") / name);
    checkpoint_ = write_run(c, path("run"));
    config_ = c.model;
  }
  std::string refusal(const Change& change) {
    write(change);
    return error_of([&] { export_to_gguf(path("run").string(), path("no.gguf").string(), {}); });
  }
  std::vector<float> ours(const std::string& name) const {
    const Manifest m = read_manifest(checkpoint_);
    const Shape& shape = m.tensors.at("model." + name).global_shape;
    const Tensor t = read_tensor(checkpoint_, m, "model." + name, {shape.size() == 2 ? Shape{0, 0} : Shape{0}, shape});
    return {t.data<float>(), t.data<float>() + t.numel()};
  }

  TempFolder folder_;
  int files_ = 0;
  fs::path checkpoint_;
  ModelConfig config_;
  GgufExported result_;
};

void make_untied_gpt2(ModelConfig& m) {
  m.norm = NormKind::layer;
  m.positions = Positions::learned;
  m.mlp = Mlp::gelu_tanh;
  m.biases = Biases::all;
  m.kv_heads = m.heads;
}

TEST_F(Gguf, ALlamaHasItsKeys) {
  const GgufFile f = exported();
  const Json expected = {{"general.architecture", "llama"},
                         {"general.type", "model"},
                         {"general.name", "run"},
                         {"general.file_type", 0},
                         {"llama.vocab_size", 300},
                         {"llama.context_length", 32},
                         {"llama.embedding_length", 64},
                         {"llama.block_count", 2},
                         {"llama.feed_forward_length", 96},
                         {"llama.attention.head_count", 4},
                         {"llama.attention.head_count_kv", 2},
                         {"llama.attention.key_length", 16},
                         {"llama.attention.value_length", 16},
                         {"llama.attention.layer_norm_rms_epsilon", 1e-5f},
                         {"llama.rope.dimension_count", 16},
                         {"llama.rope.freq_base", 1e4f},
                         {"tokenizer.ggml.bos_token_id", 256},
                         {"tokenizer.ggml.eos_token_id", 256},
                         {"tokenizer.ggml.add_bos_token", false},
                         {"tokenizer.ggml.add_eos_token", false}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(f.metadata.value(key, Json()), value) << key;
  EXPECT_FALSE(f.metadata.contains("llama.rope.scaling.type"));
  EXPECT_EQ(result_.architecture, "llama");
  EXPECT_EQ(result_.tensors, f.tensors.size());
}

TEST_F(Gguf, TensorsAreContiguousAndAligned) {
  const GgufFile f = exported([](ModelConfig& m) { m.width = 72, m.heads = 3, m.kv_heads = 3; }, GgufType::f16);
  std::uint64_t at = 0;
  for (const std::string& name : f.order) {
    const FileTensor& t = f.tensors.at(name);
    EXPECT_EQ(t.offset, at) << name;
    std::uint64_t bytes = t.type == 0 ? 4 : 2;
    for (const std::uint64_t d : t.dims) bytes *= d;
    at = (at + bytes + 31) / 32 * 32;
  }
  EXPECT_EQ(f.data_bytes(), at);
  EXPECT_EQ(f.tensors.at("blk.1.ffn_down.weight").dims, (std::vector<std::uint64_t>{96, 72}));
}

// GGUF stores the rows of a head in the order 0, D/2, 1, D/2 + 1, ...
void expect_interleaved(const std::vector<float>& theirs, const std::vector<float>& ours, std::size_t heads,
                        std::size_t columns) {
  const std::size_t width = ours.size() / columns / heads;
  ASSERT_EQ(theirs.size(), ours.size());
  for (std::size_t head = 0; head < heads; ++head)
    for (std::size_t row = 0; row < width; ++row)
      for (std::size_t c = 0; c < columns; ++c) {
        const std::size_t from = row / 2 + (row % 2) * (width / 2);
        ASSERT_EQ(theirs[(head * width + row) * columns + c], ours[(head * width + from) * columns + c])
            << head << " " << row << " " << c;
      }
}

TEST_F(Gguf, RowsOfALlamaAreInterleaved) {
  const GgufFile f = exported([](ModelConfig& m) { m.biases = Biases::all; });
  expect_interleaved(f.floats("blk.1.attn_q.weight"), ours("blocks.1.attention.wq.weight"), 4, 64);
  expect_interleaved(f.floats("blk.1.attn_k.weight"), ours("blocks.1.attention.wk.weight"), 2, 64);
  expect_interleaved(f.floats("blk.0.attn_q.bias"), ours("blocks.0.attention.wq.bias"), 4, 1);
  expect_interleaved(f.floats("blk.0.attn_k.bias"), ours("blocks.0.attention.wk.bias"), 2, 1);
  EXPECT_EQ(f.floats("blk.1.attn_v.weight"), ours("blocks.1.attention.wv.weight"));
  EXPECT_EQ(f.floats("blk.0.ffn_gate.weight"), ours("blocks.0.mlp.gate.weight"));
  EXPECT_EQ(f.floats("token_embd.weight"), ours("embedding.tokens.weight"));
  EXPECT_EQ(f.floats("output.weight"), ours("head.weight"));
}

TEST_F(Gguf, RowsOfQwenKeepTheirOrder) {
  const GgufFile two = exported([](ModelConfig& m) { m.biases = Biases::qkv; });
  EXPECT_EQ(result_.architecture, "qwen2");
  EXPECT_EQ(two.floats("blk.1.attn_q.weight"), ours("blocks.1.attention.wq.weight"));
  EXPECT_EQ(two.floats("blk.1.attn_k.bias"), ours("blocks.1.attention.wk.bias"));
  const GgufFile three = exported([](ModelConfig& m) { m.qk_norm = true, m.head_dim = 32, m.tied_embeddings = true; });
  EXPECT_EQ(result_.architecture, "qwen3");
  EXPECT_EQ(three.floats("blk.0.attn_q_norm.weight"), ours("blocks.0.attention.q_norm.weight"));
  EXPECT_EQ(three.metadata.at("qwen3.attention.key_length"), 32);
  EXPECT_FALSE(three.tensors.contains("output.weight"));
}

TEST_F(Gguf, Gpt2HasQueriesKeysAndValuesInOneTensor) {
  const GgufFile f = exported(make_untied_gpt2, GgufType::q8_0);
  EXPECT_EQ(f.metadata.at("general.architecture"), "gpt2");
  EXPECT_EQ(f.metadata.at("gpt2.attention.layer_norm_epsilon"), 1e-5f);
  EXPECT_EQ(f.tensors.at("blk.0.attn_qkv.weight").dims, (std::vector<std::uint64_t>{64, 192}));
  std::vector<float> all;
  for (const char* part : {"wq", "wk", "wv"}) {
    const std::vector<float> more = ours(str("blocks.0.attention.", part, ".bias"));
    all.insert(all.end(), more.begin(), more.end());
  }
  EXPECT_EQ(f.floats("blk.0.attn_qkv.bias"), all);
  EXPECT_EQ(f.floats("position_embd.weight"), ours("embedding.positions.weight"));
  EXPECT_EQ(f.floats("output_norm.bias"), ours("final_norm.bias"));
}

void make_gemma2(ModelConfig& m) {
  make_gemma(m);
  m.layers = 3;
  m.attention_layers[0].layers = "0,2";
  m.attention_soft_cap = 50, m.logit_soft_cap = 30;
}
void make_gemma3(ModelConfig& m) {
  make_gemma(m);
  m.layers = 7;
  m.attention_layers[0].layers = "0-4,6";
  m.qk_norm = true;
  m.rope = {.theta = 1e6, .scaling = RopeScaling::linear, .factor = 4};
  m.rope_layers = {{.layers = "0-4,6", .rope = {}}};
}

std::vector<float> plus_one(std::vector<float> values) {
  for (float& value : values) value += 1;
  return values;
}

TEST_F(Gguf, GemmasHaveSoftCapsWindowsAndNormsAroundOne) {
  const GgufFile two = exported(make_gemma2);
  EXPECT_EQ(result_.architecture, "gemma2");
  for (const auto& [key, value] : std::map<std::string, Json>{{"attn_logit_softcapping", 50.0f},
                                                              {"final_logit_softcapping", 30.0f},
                                                              {"attention.sliding_window", 9},
                                                              {"rope.freq_base", 1e4f}})
    EXPECT_EQ(two.metadata.value("gemma2." + key, Json()), value) << key;
  for (const auto& [theirs, name] :
       std::map<std::string, std::string>{{"blk.1.attn_norm", "blocks.1.attention_norm"},
                                          {"blk.2.post_attention_norm", "blocks.2.attention_out_norm"},
                                          {"blk.1.ffn_norm", "blocks.1.mlp_norm"},
                                          {"blk.0.post_ffw_norm", "blocks.0.mlp_out_norm"},
                                          {"output_norm", "final_norm"}})
    EXPECT_EQ(two.floats(theirs + ".weight"), plus_one(ours(name + ".weight"))) << theirs;
  EXPECT_EQ(two.floats("blk.1.attn_q.weight"), ours("blocks.1.attention.wq.weight"));
  EXPECT_FALSE(two.tensors.contains("output.weight"));
  const GgufFile three = exported(make_gemma3);
  EXPECT_EQ(result_.architecture, "gemma3");
  EXPECT_EQ(three.metadata.at("gemma3.rope.freq_base"), 1e6f);
  EXPECT_EQ(three.metadata.at("gemma3.rope.scaling.factor"), 4.0f);
  EXPECT_FALSE(three.metadata.contains("gemma3.final_logit_softcapping"));
  EXPECT_EQ(three.floats("blk.6.attn_q_norm.weight"), plus_one(ours("blocks.6.attention.q_norm.weight")));
}

TEST_F(Gguf, OlmosHaveNormsAfterSublayers) {
  const GgufFile two = exported(make_olmo);
  EXPECT_EQ(result_.architecture, "olmo2");
  EXPECT_FALSE(two.metadata.contains("olmo2.attention.sliding_window"));
  EXPECT_FALSE(two.tensors.contains("blk.0.attn_norm.weight"));
  EXPECT_EQ(two.tensors.at("blk.0.attn_q_norm.weight").dims, std::vector<std::uint64_t>{64});
  EXPECT_EQ(two.floats("blk.1.post_ffw_norm.weight"), ours("blocks.1.mlp_out_norm.weight"));
  const GgufFile three = exported([](ModelConfig& m) {
    make_olmo(m);
    m.layers = 5;
    m.attention_layers = {{.layers = "0-2,4", .attention = {.kind = "window", .window = 12}}};
  });
  EXPECT_EQ(result_.architecture, "olmo2");
  EXPECT_EQ(three.metadata.at("olmo2.attention.sliding_window"), 12);
}

TEST_F(Gguf, RefusesWhatLlamaCppFixesForAFamily) {
  const auto expect = [&](void (*make)(ModelConfig&), const Change& change, const std::string& message) {
    const std::string error = refusal([&](ModelConfig& m) { make(m), change(m); });
    EXPECT_TRUE(contains(error, message)) << error;
  };
  expect(
      make_gemma2, [](ModelConfig& m) { m.attention_layers[0].layers = "1"; },
      "attention of layer 0 cannot be exported as GGUF: llama.cpp's 'gemma2' supports only windows in all");
  expect(
      make_gemma2, [](ModelConfig& m) { m.attention_soft_cap = 0; }, "attention_soft_cap: 0 cannot be exported as");
  expect(
      make_gemma2, [](ModelConfig& m) { m.tied_embeddings = false; }, "tied_embeddings: false cannot be exported");
  expect(
      make_gemma2, [](ModelConfig& m) { m.attention_scale = 0.5; }, "attention_scale: 0.5 cannot be exported as");
  expect(
      make_gemma3, [](ModelConfig& m) { m.logit_soft_cap = 30; }, "logit_soft_cap: 30 cannot be exported as GGUF");
  expect(
      make_gemma3, [](ModelConfig& m) { m.rope_layers[0].rope.theta = 100; }, "layers with windows (theta 100)");
  expect(
      make_olmo, [](ModelConfig& m) { m.tied_embeddings = true; }, "tied_embeddings: true cannot be exported as");
  expect(
      make_olmo, [](ModelConfig& m) { m.head_dim = 24; }, "head_dim: 24 cannot be exported as GGUF");
}

TEST_F(Gguf, NormsStayF32AndOddRowsBecomeF16) {
  const GgufFile f = exported([](ModelConfig& m) { m.mlp_width = 88; }, GgufType::q8_0);
  EXPECT_EQ(f.metadata.at("general.file_type"), 7);
  EXPECT_EQ(f.metadata.at("general.quantization_version"), 2);
  EXPECT_EQ(f.tensors.at("blk.0.ffn_up.weight").type, 8u);
  EXPECT_EQ(f.tensors.at("blk.0.ffn_down.weight").type, 1u);  // its rows have 88 values
  EXPECT_EQ(f.floats("blk.0.ffn_norm.weight"), ours("blocks.0.mlp_norm.weight"));
  ASSERT_EQ(result_.notes.size(), 1u);
  EXPECT_TRUE(contains(result_.notes[0], "2 of the matrices are F16")) << result_.notes[0];
  const GgufFile half = exported({}, GgufType::bf16);
  EXPECT_EQ(half.metadata.at("general.file_type"), 32);
  EXPECT_EQ(half.tensors.at("output.weight").type, 30u);
}

// The expected divisors follow transformers' _compute_llama3_parameters, by wavelengths.
TEST_F(Gguf, Llama3DividesFrequencies) {
  const GgufFile f = exported([](ModelConfig& m) { m.rope = {500, RopeScaling::llama3, 8, 1, 4, 16}; });
  const std::vector<float> divisors = f.floats("rope_freqs.weight");
  ASSERT_EQ(divisors.size(), 8u);
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(500.0, static_cast<double>(i) / 8);
    const double smooth = (16 / wavelength - 1) / (4 - 1);
    const double expected = wavelength < 4 ? 1 : wavelength > 16 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
    EXPECT_NEAR(divisors[i], expected, 1e-5) << i;
  }
  const GgufFile linear = exported([](ModelConfig& m) { m.rope = {1e4, RopeScaling::linear, 2.5}; });
  EXPECT_EQ(linear.metadata.at("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(linear.metadata.at("llama.rope.scaling.factor"), 2.5f);
}

TEST_F(Gguf, RefusesModelsThatLlamaCppDoesNotSupport) {
  const auto window = [](ModelConfig& m) { m.attention.kind = "window", m.attention.window = 9; };
  EXPECT_TRUE(contains(refusal(window),
                       "window of 9 tokens cannot be exported as GGUF: llama.cpp's 'llama' supports only dense"));
  const auto exact = [](ModelConfig& m) { make_untied_gpt2(m), m.mlp = Mlp::gelu; };
  EXPECT_TRUE(contains(refusal(exact),
                       "model.mlp: gelu cannot be exported as GGUF: llama.cpp's 'gpt2' supports only gelu_tanh"));
  const auto scaled = [](ModelConfig& m) {
    m.qk_norm = true;
    m.rope = {500, RopeScaling::llama3, 8, 1, 4, 16};
  };
  EXPECT_TRUE(contains(refusal(scaled), "model.rope.scaling: llama3 cannot be exported as GGUF: llama.cpp's 'qwen3'"));
  for (const auto scaling : {RopeScaling::yarn, RopeScaling::dynamic})
    EXPECT_TRUE(contains(refusal([&](ModelConfig& m) { m.rope.scaling = scaling; }), "model.rope.scaling: "));
  const auto wide = [](ModelConfig& m) { m.biases = Biases::qkv, m.head_dim = 24; };
  EXPECT_TRUE(
      contains(refusal(wide), "model.head_dim: 24 cannot be exported as GGUF: llama.cpp's 'qwen2' supports only"));
  EXPECT_TRUE(contains(refusal(wide), "Export it with --format hf instead"));
  const auto other = [](ModelConfig& m) { m.norm_place = NormPlace::sub; };
  EXPECT_TRUE(contains(refusal(other), "model.norm_place: sub cannot be exported"));
  EXPECT_FALSE(fs::exists(path("no.gguf")));
}

TEST_F(Gguf, IsWrittenWhollyOrNotAtAll) {
  write({});
  const auto entries = [&] { return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()); };
  const auto export_it = [&](const GgufOptions& options) {
    return error_of([&] { export_to_gguf(path("run").string(), path("a.gguf").string(), options); });
  };
  int asked = 0;
  EXPECT_TRUE(contains(export_it({.type = {}, .stopped = [&] { return ++asked == 5; }}), "stopped by a signal"));
  EXPECT_EQ(entries(), 1);
  write_text(path("a.gguf"), "mine");
  EXPECT_TRUE(contains(export_it({}), "a.gguf already exists and is not overwritten"));
  EXPECT_EQ(read_text(path("a.gguf")), "mine");
  fs::remove(path("a.gguf"));
  fs::remove(path("run") / "tokenizer.rmt");
  EXPECT_TRUE(contains(export_it({}), "a GGUF file needs the tokenizer, but the run has none"));
  EXPECT_EQ(entries(), 1);
}

}  // namespace
}  // namespace ring::test
