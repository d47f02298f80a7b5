// Files that exports write beside the weights: begin-of-text and padding tokens, and the context.
#include <gtest/gtest.h>

#include "evaluate/generation_config.h"
#include "interchange/gguf/export.h"
#include "tests/interchange/published.h"
#include "text/bpe/train.h"
#include "text/sentencepiece_train.h"

namespace ring::test {
namespace {

// A folder that names no begin-of-text token gets none: a chat template would write it.
TEST_F(Hf, BeginAndPaddingTokensAreThoseOfTheSource) {
  export_to_hf(path("run").string(), path("own").string(), {});
  for (const char* file : {"config.json", "generation_config.json"})
    EXPECT_TRUE(json_in(path("own") / file).at("bos_token_id").is_null()) << file << " of a tokenizer made here";
  for (const char* model : {"Llama", "Qwen2", "Gpt2"})
    for (const bool named : {false, true}) {
      const fs::path run = path("from"), out = path("out"), again = path("again");
      fs::create_directories(run);
      write_run(config_with(model_named(model)), run);
      export_to_hf(run.string(), out.string(), {});
      nlohmann::json config = json_in(out / "config.json");
      config.erase("bos_token_id");
      if (named) config["bos_token_id"] = 5;
      config["pad_token_id"] = 3;
      replace_text(out / "config.json", config.dump());
      if (named) fs::remove(out / "generation_config.json");
      import_from_hf(out.string(), path("new").string(), {});
      export_to_hf(path("new").string(), again.string(), {});
      for (const char* file : {"config.json", "generation_config.json"}) {
        const nlohmann::json j = json_in(again / file);
        EXPECT_EQ(j.at("bos_token_id"), named ? nlohmann::json(5) : nlohmann::json()) << model << " " << file;
        EXPECT_EQ(j.at("pad_token_id"), 3) << model << " " << file;
      }
      for (const fs::path& made : {run, out, again, path("new")}) fs::remove_all(made);
    }
}

// The model file has a bos_id whether or not texts begin with it.
TEST_F(Hf, TheBeginTokenOfSentencePieceIsThatOfTheWeights) {
  const TextSource text = [](const auto& take) {
    for (int i = 0; i < 200; ++i) take(str("the rain number ", i * i, " stays mainly in the plain of Spain, ", i));
  };
  SentencePieceOptions options;
  options.vocab_size = 310;
  const auto t = train_sentencepiece(text, options);
  Config config = config_;
  config.model.vocab_size = t->vocab_size();
  fs::create_directories(path("sp"));
  write_run(config, path("sp"));
  save_tokenizer(*t, (path("sp") / "tokenizer.rmt").string());
  const auto first = [&] {
    fs::remove_all(path("out"));
    export_to_hf(path("sp").string(), path("out").string(), {});
    return json_in(path("out") / "tokenizer_config.json").at("bos_token");
  };
  EXPECT_TRUE(first().is_null());
  write_text(path("sp") / kGenerationFile, R"({"bos_token_id": 300})");
  EXPECT_EQ(first(), t->piece(300));
}

// Weights support the context of the model that they were tuned from, even if the texts of the tuning were shorter.
TEST_F(Hf, AnExportNamesTheLongestContextOfTheRunAndItsBases) {
  const auto tuned = [&](const std::string& name, std::int64_t context, const std::string& from) {
    Config c = config_;
    c.model.context = context;
    c.run.init_from = from;
    fs::create_directories(path(name));
    write_run(c, path(name));
  };
  const auto exported = [&](const std::string& name, std::int64_t context = 0) {
    fs::remove_all(path("out"));
    const Exported e = export_to_hf(path(name).string(), path("out").string(), {.stopped = {}, .context = context});
    return std::pair(json_in(path("out") / "config.json").at("max_position_embeddings").get<std::int64_t>(),
                     e.notes.front());  // the other note is about the tokenizer
  };
  tuned("tuned", 16, path("run").string());
  tuned("twice", 8, path("tuned").string());
  tuned("longer", 64, path("run").string());
  const auto [context, note] = exported("twice");
  EXPECT_EQ(context, config_.model.context);
  EXPECT_TRUE(contains(note, "is 32 tokens, from " + path("run").string() + " (run.init_from), instead of the 8 "))
      << note;
  EXPECT_TRUE(contains(note, "--context N")) << note;
  EXPECT_EQ(exported("longer").first, 64);
  EXPECT_FALSE(contains(exported("longer").second, "context"));
  EXPECT_EQ(exported("tuned", 24).first, 24);
  EXPECT_FALSE(contains(exported("tuned", 24).second, "context"));
  const GgufExported gguf = export_to_gguf(path("tuned").string(), path("t.gguf").string(), {});
  EXPECT_TRUE(contains(read_text(path("t.gguf"), 1 << 30),
                       std::string("llama.context_length") + std::string({4, 0, 0, 0, 32, 0, 0, 0})));
  ASSERT_FALSE(gguf.notes.empty());
  EXPECT_TRUE(contains(gguf.notes.front(), "is 32 tokens")) << gguf.notes.front();
  fs::remove_all(path("moved"));
  fs::rename(path("run"), path("moved"));
  EXPECT_EQ(exported("tuned").first, 16);
  EXPECT_TRUE(contains(exported("tuned").second, "because " + path("tuned").parent_path().string() +
                                                     "/run (run.init_from) "
                                                     "cannot be read"))
      << exported("tuned").second;
}

TEST_F(Hf, AnExportNamesNoContextBeyondItsPositions) {
  const auto exported = [&](const std::string& model, std::int64_t own, std::int64_t context) {
    fs::remove_all(path("m"));
    fs::remove_all(path("out"));
    fs::create_directories(path("m"));
    Config c = config_with(model_named(model));
    c.model.context = own;
    write_run(c, path("m"));
    export_to_hf(path("m").string(), path("out").string(), {.stopped = {}, .context = context});
    const nlohmann::json j = json_in(path("out") / "config.json");
    return j.value("max_position_embeddings", j.value("n_positions", 0));
  };
  // Positions of "Llama3" and "LlamaYarn" were made for 16 tokens, those of "LlamaDynamic" for 32.
  EXPECT_EQ(exported("Llama3", 8, 0), 16);
  EXPECT_EQ(exported("LlamaYarn", 8, 0), 16);
  EXPECT_EQ(exported("LlamaLinear", 8, 0), 8);
  EXPECT_EQ(exported("LlamaDynamic", 8, 0), 32);
  EXPECT_EQ(exported("Gpt2", 24, 0), 24);
  const auto error = [&](const std::string& model, std::int64_t context) {
    return error_of([&] { exported(model, 24, context); });
  };
  EXPECT_TRUE(contains(error("Llama3", 8), "--context: expected at least model.rope.original_context, 16, got 8"));
  EXPECT_TRUE(contains(error("LlamaDynamic", 64), "model.rope.original_context, 32. Leave the option out"));
  EXPECT_TRUE(contains(error("Gpt2", 32), "--context: 32 tokens, but this model has learned its 24"));
}

#ifdef RING_WITH_UTF8PROC

TEST_F(Hf, ATokenizerConfigHasTheBeginTokenOfItsSource) {
  const auto t = bpe::train_byte_bpe([](const auto& take) { take("ab ab ab ab"); }, {.vocab_size = 300});
  const auto exported = [&](const std::string& config) {
    const auto named = json_tokenizer(t->plain_file(), "t.json", config);
    fs::remove_all(path("out"));
    save_tokenizer(*named, (path("run") / "tokenizer.rmt").string());
    export_to_hf(path("run").string(), path("out").string(), {});
    return json_in(path("out") / "tokenizer_config.json");
  };
  const nlohmann::json none = exported(R"({"bos_token": null, "eos_token": "<|endoftext|>"})");
  EXPECT_TRUE(none.at("bos_token").is_null());
  EXPECT_EQ(none.at("eos_token"), "<|endoftext|>");
  EXPECT_EQ(exported(R"({"bos_token": "<|endoftext|>"})").at("bos_token"), "<|endoftext|>");
}

#endif

}  // namespace
}  // namespace ring::test
