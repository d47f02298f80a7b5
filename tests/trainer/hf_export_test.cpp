// What an export says beside the weights: first and padding tokens.
#include <gtest/gtest.h>

#include "data/bpe/train.h"
#include "data/sentencepiece_train.h"
#include "tests/trainer/published.h"
#include "trainer/generation_config.h"

namespace ring::test {
namespace {

// A folder that names no first token gets none: a chat template would write it.
TEST_F(Hf, TokensThatBeginAndPadTextsAreThoseOfTheSource) {
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

// The model file has a bos_id whether texts begin with it or not.
TEST_F(Hf, TheFirstTokenOfSentencePieceIsThatOfTheWeights) {
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

#ifdef RING_WITH_UTF8PROC

TEST_F(Hf, ATokenizerConfigHasTheFirstTokenOfItsSource) {
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
