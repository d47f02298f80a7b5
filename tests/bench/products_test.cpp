// Timed GEMMs of linear layers: which ones are measured, and their sums.
#include "bench/products.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

ModelConfig model(Mlp mlp) {
  ModelConfig m;
  m.width = 96, m.heads = 6, m.kv_heads = 2, m.mlp_width = 160, m.mlp = mlp;
  return m.resolved();
}

std::vector<std::int64_t> outputs_of(const std::vector<LinearShape>& linears) {
  std::vector<std::int64_t> outputs;
  for (const LinearShape& l : linears) outputs.push_back(l.outputs);
  return outputs;
}

TEST(BlockLinears, FollowTheModel) {
  EXPECT_EQ(outputs_of(block_linears(model(Mlp::swiglu))), (std::vector<std::int64_t>{160, 96, 320, 96}));
  EXPECT_EQ(outputs_of(block_linears(model(Mlp::gelu))), (std::vector<std::int64_t>{160, 96, 160, 96}));
  EXPECT_EQ(block_linears(model(Mlp::swiglu))[3].inputs, 160);
  ModelConfig gated = model(Mlp::swiglu);
  gated.attention_output_gate = true;
  EXPECT_EQ(outputs_of(block_linears(gated)), (std::vector<std::int64_t>{160, 96, 96, 320, 96}));
}

TEST(TimedLinear, MeasuresAllGemmsAndTheirSums) {
  const ExecContext ctx{Stream::cpu(2)};
  const LinearTiming t = time_linear({"up", 48, 32}, 40, 1e-4, 1, ctx);
  std::set<std::string> works;
  std::map<std::string, LinearSeconds> sums;
  for (const ProductTiming& p : t.rows) {
    EXPECT_GT(p.seconds, 0) << p.work;
    const bool first = works.insert(str(p.work, ' ', p.type)).second;
    if (p.work.starts_with("quantize")) {
      sums[p.type].quantization += p.seconds;
    } else {
      EXPECT_EQ(p.cost.flops, 2.0 * 48 * 32 * 40) << p.work;
      if (first) sums[p.type].products += p.seconds;
    }
  }
  std::set<std::string> want;
  for (const std::string type : {"f32", "fp8_blocks", "fp8_tensor"}) {
    for (const char* work : {"forward ", "input gradient ", "weight gradient "}) want.insert(work + type);
    if (type != "f32")
      for (const char* what : {"input ", "gradient ", "weight "}) want.insert(str("quantize ", what, type));
    EXPECT_DOUBLE_EQ(t.seconds.at(type).products, sums[type].products);
    EXPECT_DOUBLE_EQ(t.seconds.at(type).quantization, sums[type].quantization);
  }
  EXPECT_EQ(works, want);
}

TEST(TimedProducers, FollowTheModel) {
  const ExecContext ctx{Stream::cpu(2)};
  const auto names = [&](Mlp mlp, NormKind norm) {
    ModelConfig m = model(mlp);
    m.norm = norm;
    std::vector<std::string> names;
    for (const ProducerTiming& t : time_producers(m, 24, 1e-4, 1, ctx)) {
      EXPECT_EQ(t.rows.size(), 3u) << t.name;  // in f32 and in both forms of FP8
      EXPECT_GT(t.fused.at("f32"), 0) << t.name;
      for (const char* type : {"fp8_blocks", "fp8_tensor"}) {
        EXPECT_GT(t.separate.at(type), 0) << t.name;
        EXPECT_EQ(t.fused.at(type), t.separate.at(type)) << t.name << ": a CPU has no other kernel";
      }
      names.push_back(str(t.calls, ' ', t.name));
    }
    return names;
  };
  EXPECT_EQ(names(Mlp::swiglu, NormKind::rms),
            (std::vector<std::string>{"2 rms norm", "1 swiglu", "1 swiglu gradient", "1 rope gradient"}));
  EXPECT_EQ(names(Mlp::gelu, NormKind::rms), (std::vector<std::string>{"2 rms norm", "1 rope gradient"}));
  EXPECT_EQ(names(Mlp::gelu, NormKind::layer), (std::vector<std::string>{"1 rope gradient"}));
}

TEST(BenchProducts, PrintsEachLinearLayerAndTheBlock) {
  const auto file = std::filesystem::temp_directory_path() / str("ringmaster-bench-products-", getpid(), ".yaml");
  std::ofstream(file) << "run: {threads: 2, device: cpu}\nmodel: {context: 16, width: 32, heads: 2, mlp: swiglu}\n"
                         "data: {path: none.h5}\ntrain: {batch_size: 2, steps: 8}\n";
  const Finished end =
      run_process({ring_binary(), "bench", "products", file.string(), "--seconds", "0.0001", "--rounds", "1"});
  std::filesystem::remove(file);
  EXPECT_EQ(end.code, 0) << end.output;
  for (const char* text :
       {"32 tokens", "qkv: 96 outputs, 32 inputs", "gate and up: 192 outputs, 32 inputs", "down: 32 outputs, 96 inputs",
        "e4m3[32x192x32]w", "e4m3[192x32x32]w+c", "e4m3[32x192x32]t", "e4m3[192x32x32]t+c", "f32[32,192]",
        "then quantize us", "fp8_blocks us", "fp8_tensor us", "\nswiglu gradient ", "\nrope gradient ", "\nblock "})
    EXPECT_NE(end.output.find(text), std::string::npos) << text << "\n" << end.output;
}

}  // namespace
}  // namespace ring::test
