// Loss masks, which tell the tokens of a corpus that count as targets, from the file to the batch.

#include <hdf5.h>

#include <algorithm>
#include <functional>

#include "core/philox.h"
#include "data/loader.h"
#include "data/packing.h"
#include "tests/data/corpus_case.h"
#include "tests/data/sealed_corpus.h"

namespace ring {
namespace {

// Returns whether token number `token` of a split counts in the corpora here.
bool counts(std::size_t split, std::uint64_t token) { return random_bits({11, 0, 0}, token / 5 + 1000003 * split) % 3; }

// Writes documents of 1 to 40 tokens. Each token is its offset modulo 251.
std::string write_masked(const std::string& path, std::array<std::uint64_t, 2> tokens) {
  TokenStoreWriter writer(path, 257, true);
  for (const Split split : {Split::train, Split::validation}) {
    const auto s = static_cast<std::size_t>(split);
    std::uint64_t left = 0;  // tokens left in the open document
    for (std::uint64_t t = 0; t < tokens[s]; ++t) {
      if (left == 0) {
        writer.begin_document(split);
        left = 1 + random_bits({12, 0, 0}, t) % 40;
      }
      --left;
      writer.append(split, std::vector{static_cast<std::int32_t>(t % 251)}, counts(s, t));
      writer.add_text_bytes(split, 2, counts(s, t));
    }
  }
  writer.finish(*bytes_tokenizer(), "a test");
  return path;
}

std::vector<std::uint8_t> mask_of(const TokenSplit& split, std::uint64_t begin, std::size_t count) {
  std::vector<std::uint8_t> out(count, 7);
  split.read_mask(begin, count, out.data());
  return out;
}

std::vector<std::uint8_t> expected_mask(std::size_t split, std::uint64_t begin, std::size_t count) {
  std::vector<std::uint8_t> out;
  for (std::uint64_t t = begin; t < begin + count; ++t) out.push_back(counts(split, t));
  return out;
}

TEST(LossMask, ReadsWhatWasWritten) {
  TempFolder folder;
  const std::array<std::uint64_t, 2> tokens{1200001, 77};  // more than two blocks of a mask
  const auto store = TokenStore::open(write_masked(folder / "c.h5", tokens));
  for (std::size_t s = 0; s < 2; ++s) {
    const TokenSplit& split = s ? store->validation() : store->train();
    ASSERT_TRUE(split.masked());
    const auto all = expected_mask(s, 0, tokens[s]);
    EXPECT_EQ(mask_of(split, 0, tokens[s]), all);
    EXPECT_EQ(split.targets(), static_cast<std::uint64_t>(std::ranges::count(all, 1)));
    EXPECT_EQ(split.target_bytes(), 2 * split.targets());
    EXPECT_EQ(split.text_bytes(), 2 * tokens[s]);
  }
  for (const std::uint64_t begin : {0, 1, 7, 8, 9, 524287, 524288, 1199990})
    for (const std::size_t count : {0, 1, 2, 8, 11})
      EXPECT_EQ(mask_of(store->train(), begin, count), expected_mask(0, begin, count));
  expect_error([&] { mask_of(store->train(), 1200000, 2); }, {"c.h5 (train)", "1200001 tokens"});
}

// Reads the bits like numpy.unpackbits(mask, bitorder="little") in Python.
TEST(LossMask, OtherReadersOfHdf5SeeBits) {
  TempFolder folder;
  const std::string path = write_masked(folder / "c.h5", {1001, 50});
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t set = H5Dopen2(file, "/train/loss_mask", H5P_DEFAULT);
  std::vector<std::uint8_t> bytes(126);
  ASSERT_GE(H5Dread(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), 0);
  for (std::size_t t = 0; t < 1001; ++t) ASSERT_EQ(bytes[t / 8] >> t % 8 & 1, counts(0, t)) << t;
  std::uint64_t targets = 0;
  const hid_t attribute = H5Aopen_by_name(file, "/train", "targets", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_GE(H5Aread(attribute, H5T_NATIVE_UINT64, &targets), 0);
  EXPECT_EQ(targets, TokenStore::open(path)->train().targets());
  H5Aclose(attribute), H5Dclose(set), H5Fclose(file);
}

TEST(LossMask, CorporaWithoutAMaskKeepTheirFormat) {
  TempFolder folder;
  const SealedCorpus plain(write_corpus(folder / "a.h5", counting(1000), counting(10)));
  EXPECT_EQ(plain.index.version, 2u);
  for (std::size_t at = offsetof(CorpusIndex, masks); at < offsetof(CorpusIndex, index_hash); ++at)
    ASSERT_EQ(plain.bytes[at], 0) << "byte " << at << " of the index";
  EXPECT_EQ(SealedCorpus(write_masked(folder / "b.h5", {100, 10})).index.version, 3u);
  const auto store = TokenStore::open(folder / "a.h5");
  EXPECT_FALSE(store->train().masked());
  EXPECT_EQ(store->train().targets(), 1000u);
  EXPECT_EQ(mask_of(store->train(), 990, 10), std::vector<std::uint8_t>(10, 1));
  TokenStoreWriter writer(folder / "c.h5", 257);
  writer.begin_document(Split::train);
  expect_error([&] { writer.append(Split::train, counting(3), false); }, {"without a loss mask"});
}

TEST(LossMask, ChangesTheHashOfASplit) {
  TempFolder folder;
  const auto hash = [&](bool masked, std::size_t ignored) {
    TokenStoreWriter writer(folder / "c.h5", 257, masked);
    writer.begin_document(Split::train);
    const std::vector<std::int32_t> tokens = counting(1000);
    const std::span<const std::int32_t> all = tokens;
    if (ignored > 0) writer.append(Split::train, all.first(ignored), false);
    writer.append(Split::train, all.subspan(ignored));
    writer.finish(*bytes_tokenizer(), "a test");
    return TokenStore::open(folder / "c.h5")->train().tokens_hash();
  };
  EXPECT_EQ(hash(true, 0), hash(true, 0));
  EXPECT_NE(hash(true, 0), hash(false, 0));
  EXPECT_NE(hash(true, 0), hash(true, 7));
}

void damage_byte(const std::string& path, std::uint64_t byte) {
  SealedCorpus bad(path);
  bad.bytes[byte] = static_cast<char>(bad.bytes[byte] ^ 4);
  bad.save(path);
}

TEST(LossMask, DamageIsNamed) {
  TempFolder folder;
  const std::string path = write_masked(folder / "c.h5", {600001, 50});
  const SealedCorpus good(path);
  for (std::size_t s = 0; s < 2; ++s) {
    damage_byte(path, good.index.masks[s].data.offset + 3);
    const auto store = TokenStore::open(path);
    const TokenSplit& split = s ? store->validation() : store->train();
    expect_error([&] { mask_of(split, 20, 20); },
                 {str("c.h5: /", kSplitNames[s], "/loss_mask is damaged"), "data prepare"});
    if (s == 0) {
      EXPECT_EQ(mask_of(split, 600000, 1), expected_mask(0, 600000, 1)) << "another block";
    }
    std::vector<std::string> named;
    verify_corpus(*store, [&](const std::string& what) { named.push_back(what); });
    ASSERT_EQ(named.size(), 1u);
    EXPECT_NE(named[0].find("/loss_mask is damaged"), std::string::npos) << named[0];
    good.save(path);
  }
  damage_byte(path, good.index.masks[0].hashes.offset);
  expect_error([&] { TokenStore::open(path); }, {"c.h5 is damaged", "hashes"});
}

TEST(LossMask, AnIndexThatContradictsItselfIsNamed) {
  TempFolder folder;
  const std::string path = write_masked(folder / "c.h5", {1001, 50});
  const SealedCorpus good(path);
  const auto wrong = [&](const std::function<void(CorpusIndex&)>& change, const std::string& part) {
    SealedCorpus bad = good;
    change(bad.index);
    bad.seal_index_and_save(path);
    expect_error([&] { TokenStore::open(path); }, {"c.h5", part});
  };
  wrong([](CorpusIndex& i) { i.version = 2; }, "format 2 has neither");
  wrong([](CorpusIndex& i) { i.chat_template = i.tokenizer; }, "belong to two sections");
  wrong([](CorpusIndex& i) { i.masks[0].targets = 1002; }, "1002 targets among 1001 tokens");
  wrong([](CorpusIndex& i) { i.masks[0].data = {}; }, "1001 tokens with 0 bytes");
  wrong([](CorpusIndex& i) { --i.masks[0].data.bytes; }, "expected 126 bytes");
  wrong([](CorpusIndex& i) { i.masks[0].hashes.bytes = 0; }, "expected 8 bytes");
  wrong([](CorpusIndex& i) { i.masks[0].data.offset = ~std::uint64_t{0}; }, "is inconsistent");
  wrong([](CorpusIndex& i) { i.masks[0].data.offset = i.splits[0].token_data.offset; }, "belong to two sections");
  SealedCorpus behind = good;
  behind.bytes[behind.index.masks[0].data.end() - 1] = 2;  // the bit after those of tokens 0 to 1000
  behind.seal_and_save(path);
  const auto store = TokenStore::open(path);
  expect_error([&] { mask_of(store->train(), 0, 5); }, {"c.h5 (train) is damaged", "after the last of 1001"});
}

class MaskedBatches : public testing::Test {
 protected:
  MaskedBatches() {
    write_masked(folder_ / "c.h5", {20011, 5000});
    corpora_ = open_corpus(folder_ / "c.h5");
  }
  static LoaderOptions options(bool documents, std::int64_t align) {
    LoaderOptions o{.context = 64, .rows = 3, .seed = 5, .prefetch = 0};
    o.packing = {documents, align};
    return o;
  }
  TempFolder folder_;
  Corpora corpora_;
};

TEST_F(MaskedBatches, TargetsThatDoNotCountAreIgnored) {
  for (const bool documents : {false, true}) {
    Loader loader(corpora_, options(documents, 1));
    const TokenSplit& split = corpora_.stores[0]->train();
    DocumentStarts starts(split);
    for (int i = 0; i < 200; ++i) {
      const Batch b = loader.next();
      std::int64_t valid = 0;
      for (std::size_t row = 0; row < 3; ++row) {
        const SampleLocation place = loader.map()(static_cast<std::uint64_t>(b.sample_indices[row]));
        for (std::uint64_t t = 0; t < 64; ++t) {
          const std::uint64_t target = place.begin + t + 1;
          const bool first = documents && starts(starts.document_of(target)) == target;
          const bool there = !first && counts(0, target);
          ASSERT_EQ(b.targets[64 * row + t], there ? static_cast<std::int32_t>(target % 251) : -100);
          ASSERT_EQ(b.inputs[64 * row + t], static_cast<std::int32_t>((target - 1) % 251));
          valid += there;
        }
      }
      ASSERT_EQ(b.valid_targets, valid);
    }
  }
}

// Over all rows of a validation set, every token that counts and is not the first of its document is a target once.
TEST_F(MaskedBatches, ValidationCountsTargetsOnce) {
  const TokenSplit& split = corpora_.stores[0]->validation();
  DocumentStarts starts(split);
  for (const std::int64_t align : {0, 1, 8}) {
    std::int64_t want = 0, valid = 0, left = 0;
    const bool documents = align > 0;
    for (std::uint64_t t = 1; t < split.tokens(); ++t)
      want += counts(1, t) && !(documents && starts(starts.document_of(t)) == t);
    const ValidationSet set(corpora_, options(documents, std::max<std::int64_t>(align, 1)));
    for (std::int64_t i = 0; i < set.batches(); ++i) {
      const Batch b = set.batch(i);
      valid += b.valid_targets;
      left += std::ranges::count_if(b.targets, [](std::int32_t t) { return t >= 0; });
    }
    EXPECT_EQ(valid, left);
    EXPECT_EQ(valid, want) << align;
    EXPECT_DOUBLE_EQ(set.bytes_per_token(), 2);
  }
}

TEST(LossMask, WithoutTargetsNothingIsNan) {
  TempFolder folder;
  TokenStoreWriter writer(folder / "c.h5", 257, true);
  for (const Split split : {Split::train, Split::validation}) {
    writer.begin_document(split);
    writer.append(split, counting(200), false);
    writer.add_text_bytes(split, 200, false);
  }
  writer.finish(*bytes_tokenizer(), "a test");
  const Corpora corpora = open_corpus(folder / "c.h5");
  const LoaderOptions options{.context = 16, .rows = 2, .prefetch = 0};
  EXPECT_EQ(Loader(corpora, options).next().valid_targets, 0);
  const ValidationSet set(corpora, options);
  EXPECT_EQ(set.batch(0).valid_targets, 0);
  EXPECT_EQ(set.bytes_per_token(), 1);
}

TEST_F(MaskedBatches, InAMixtureAllTokensOfAPlainCorpusCount) {
  write_corpus(folder_ / "plain.h5", counting(10000), counting(100));
  DataConfig config;
  config.mixture = {{folder_ / "c.h5", 1}, {folder_ / "plain.h5", 1}};
  Loader loader(open_corpora(config), options(false, 1));
  std::int64_t plain = 0;
  for (int i = 0; i < 20; ++i) {
    const Batch b = loader.next();
    for (std::size_t row = 0; row < 3; ++row) {
      if (loader.map()(static_cast<std::uint64_t>(b.sample_indices[row])).corpus == 0) continue;
      ++plain;
      EXPECT_EQ(std::count(b.targets.begin() + 64 * row, b.targets.begin() + 64 * (row + 1), -100), 0);
    }
  }
  EXPECT_EQ(plain, 30);
}

}  // namespace
}  // namespace ring
