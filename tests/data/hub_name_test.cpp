#include "data/hub_name.h"

#include <gtest/gtest.h>

#include "corpus_case.h"
#include "data/load_tokenizer.h"

namespace ring {
namespace {

TEST(HubName, ErrorNamesTheDownloadCommand) {
  const auto advises = [](const std::string& name) { return !download_advice(name).empty(); };
  for (const char* name : {"no-such-gpt2", "no-such-owner/Model-1.5B", "no_such_owner/a.5"})
    EXPECT_TRUE(advises(name)) << name;
  for (const char* path : {"/a/b", "./a", "../a/b", "a/b/c", "a b", "tok.rmt", "a/tokenizer.json", "a.h5", "run.yml",
                           "x.toml", "", "/", "a/"})
    EXPECT_FALSE(advises(path)) << path;
  EXPECT_EQ(download_advice("o-1/m"),
            ". Nothing is downloaded. If o-1/m is a model on Hugging Face, `hf download o-1/m --local-dir m` downloads "
            "it into a folder that can be given here");
  expect_error([] { load_tokenizer("no-such-gpt2"); }, {"hf download no-such-gpt2 --local-dir no-such-gpt2"});
}

}  // namespace
}  // namespace ring
