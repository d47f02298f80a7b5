// Corpora that are damaged, truncated or crafted, and files that are no corpora: an error names each, and none ends the
// process.

#include <fcntl.h>
#include <sys/stat.h>

#include <random>

#include "corpus_case.h"
#include "data/load_tokenizer.h"
#include "data/loader.h"
#include "data/packing.h"
#include "sealed_corpus.h"

namespace ring {
namespace {

// Writes documents of 0 to 40 tokens; above 8192 documents, their starts fill more than one block.
std::string write_random_documents(const std::string& path, std::size_t documents, std::int64_t vocab) {
  TokenStoreWriter writer(path, vocab);
  std::mt19937 random(7);
  for (std::size_t d = 0; d < documents; ++d) {
    const Split split = d % 10 == 9 ? Split::validation : Split::train;
    std::vector<std::int32_t> tokens(random() % 41);
    for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(vocab));
    writer.begin_document(split);
    writer.append(split, tokens);
    writer.add_text_bytes(split, tokens.size());
  }
  writer.finish(*bytes_tokenizer(), "a test");
  return path;
}

// Returns everything that can be read from a corpus, as text.
std::string contents(const std::string& path) {
  const auto store = TokenStore::open(path);
  std::string out = str(store->vocab_size(), store->source(), store->tokenizer_kind(), store->tokenizer()->hash());
  for (const TokenSplit* split : {&store->train(), &store->validation()}) {
    std::vector<std::int32_t> tokens(split->tokens());
    split->read(0, tokens.size(), tokens.data());
    out.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0]));
    DocumentStarts starts(*split);
    for (std::uint64_t d = 0; d <= split->documents(); ++d) {
      const std::uint64_t start = starts(d);
      out.append(reinterpret_cast<const char*>(&start), sizeof(start));
    }
    out += str(split->text_bytes(), split->tokens_hash());
  }
  return out;
}

void flip(const std::string& path, std::uint64_t bit) {
  const FileHandle file(path, O_RDWR);
  char byte = 0;
  file.read_at(&byte, 1, bit / 8);
  byte = static_cast<char>(byte ^ (1 << bit % 8));
  ASSERT_EQ(::pwrite(file.fd(), &byte, 1, static_cast<off_t>(bit / 8)), 1);
}

// Flips every `step`-th bit of the parts that are checked when a corpus is opened.
void flip_structure(const std::string& path, std::uint64_t step) {
  const SealedCorpus good(path);
  auto places = good.index.structure();
  places.push_back({0, sizeof(CorpusIndex)});
  std::uint64_t tried = 0;
  for (const ByteExtent& e : places) {
    for (std::uint64_t bit = 8 * e.offset; bit < 8 * e.end(); bit += step, ++tried) {
      flip(path, bit);
      try {
        TokenStore::open(path);
        ADD_FAILURE() << "bit " << bit << " is flipped, and nobody noticed";
      } catch (const Error& e) {
        ASSERT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
      }
      flip(path, bit);
    }
  }
  testing::Test::RecordProperty("flips", std::to_string(tried));
  EXPECT_GT(tried * step, 8 * sizeof(CorpusIndex));
}

TEST(CorpusDamage, FlippedBitsOfTheStructureAreNamed) {
  TempFolder folder;
  flip_structure(write_random_documents(folder / "c.h5", 100, 257), 101);
  flip_structure(write_random_documents(folder / "d.h5", 100, 70000), 101);
}

// An odd step reaches each bit position of a byte.
TEST(SlowCorpusDamage, ManyFlippedBitsOfTheStructureAreNamed) {
  TempFolder folder;
  flip_structure(write_random_documents(folder / "c.h5", 100, 257), 13);
  flip_structure(write_random_documents(folder / "d.h5", 9000, 70000), 13);
}

// Flips `flips` random bits of each dataset. Opening succeeds; reading the block and verifying the corpus name the
// damage.
void flip_data(const std::string& path, int flips) {
  const SealedCorpus good(path);
  std::mt19937_64 random(3);
  for (std::size_t split = 0; split < 2; ++split) {
    for (const auto member : {&SplitIndex::token_data, &SplitIndex::start_data}) {
      const ByteExtent& e = good.index.splits[split].*member;
      for (int i = 0; i < flips; ++i) {
        const std::uint64_t bit = 8 * e.offset + random() % (8 * e.bytes);
        const std::uint64_t first = (bit / 8 - e.offset) / kBlockBytes * kBlockBytes;
        flip(path, bit);
        const std::string block = str("bytes ", e.offset + first, " to ");
        expect_error([&] { contents(path); }, {path + ": /" + kSplitNames[split], block, "data prepare"});
        std::vector<std::string> named;
        const VerifyReport report =
            verify_corpus(*TokenStore::open(path), [&](const std::string& what) { named.push_back(what); });
        ASSERT_EQ(named.size(), 1u);
        EXPECT_NE(named[0].find(block), std::string::npos) << named[0];
        EXPECT_EQ(report.damaged, 1u);
        EXPECT_EQ(report.bytes, report.total_bytes);
        flip(path, bit);
      }
    }
  }
  contents(path);
}

TEST(CorpusDamage, FlippedBitsOfTheDataAreNamedAtTheirFirstUse) {
  TempFolder folder;
  flip_data(write_random_documents(folder / "c.h5", 20000, 257), 10);
}

TEST(SlowCorpusDamage, FourHundredFlippedBitsOfTheDataAreNamedAtTheirFirstUse) {
  TempFolder folder;
  flip_data(write_random_documents(folder / "c.h5", 20000, 257), 100);
}

TEST(CorpusDamage, OtherBlocksStayReadable) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(200000), {});
  const std::uint64_t damaged = 100000;  // a token; its block holds tokens 98304 to 131072
  flip(path, 8 * (SealedCorpus(path).index.splits[0].token_data.offset + 2 * damaged));
  const auto store = TokenStore::open(path);
  std::vector<std::int32_t> out(98304);
  store->train().read(0, 98304, out.data());
  EXPECT_EQ(out, counting(98304));
  store->train().read(131072, 60000, out.data());
  const std::vector<std::pair<std::uint64_t, std::size_t>> touching{{98303, 2}, {131071, 1}, {98304, 1}, {0, 98305}};
  out.resize(98305);
  for (const auto& [begin, count] : touching)
    expect_error([&] { store->train().read(begin, count, out.data()); },
                 {"c.h5: /train/tokens is damaged", "block 3 of 7", "data prepare"});
}

TEST(CorpusDamage, EveryTruncationIsNamed) {
  TempFolder folder;
  const std::string path = write_random_documents(folder / "c.h5", 300, 257);
  const SealedCorpus good(path);
  std::vector<std::uint64_t> sizes{0, 1, 17, 18, sizeof(CorpusIndex) - 1, sizeof(CorpusIndex), good.bytes.size() - 1};
  const CorpusIndex& index = good.index;
  std::vector<ByteExtent> places{index.tokenizer};
  for (const SplitIndex& s : index.splits)
    places.insert(places.end(), {s.token_data, s.start_data, s.token_hashes, s.start_hashes});
  for (const ByteExtent& e : places)
    for (const std::uint64_t at : {e.offset, e.end()}) sizes.insert(sizes.end(), {at - 1, at, at + 1});
  for (std::uint64_t size = 3; size < good.bytes.size(); size += size / 5 + 1) sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    if (size >= good.bytes.size()) continue;
    good.save(path);
    std::filesystem::resize_file(path, size);
    expect_error([&] { TokenStore::open(path); }, {path, "data prepare"});
  }
  good.save(path);
  std::filesystem::resize_file(path, good.bytes.size() + 1);
  expect_error([&] { TokenStore::open(path); }, {path, "is damaged", std::to_string(good.bytes.size() + 1)});
}

// Reading memory-mapped files would end in SIGBUS here.
TEST(CorpusDamage, AFileTruncatedWhileInUseIsNamed) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(200000), {});
  const auto store = TokenStore::open(path);
  std::int32_t token = 0;
  store->train().read(150000, 1, &token);
  std::filesystem::resize_file(path, 50000);
  expect_error([&] { store->train().read(150000, 1, &token); }, {"c.h5 is truncated", "got 50000", "while in use"});
  for (const std::int64_t prefetch : {0, 4}) {
    Corpora corpora;
    corpora.stores = {store};
    corpora.mixture = {{0, {1}}};
    Loader loader(corpora, {.context = 64, .rows = 8, .prefetch = prefetch});
    expect_error(
        [&] {
          for (int i = 0; i < 1000; ++i) loader.next();
        },
        {"c.h5 is truncated"});
  }
}

TEST(CorpusDamage, TheLoaderNamesADamagedBlock) {
  TempFolder folder;
  const std::string path = write_random_documents(folder / "c.h5", 20000, 257);
  const SealedCorpus good(path);
  const auto all_samples = [&](const PackingConfig& packing) {
    Loader loader(open_corpus(path), {.context = 512, .rows = 16, .packing = packing});
    for (int i = 0; i < 60; ++i) loader.next();
  };
  flip(path, 8 * (good.index.splits[0].token_data.offset + 300000));
  for (const PackingConfig packing : {PackingConfig{}, PackingConfig{true, 1}, PackingConfig{true, 64}})
    expect_error([&] { all_samples(packing); }, {"c.h5: /train/tokens is damaged", "do not match their hash"});
  good.save(path);
  flip(path, 8 * (good.index.splits[0].start_data.offset + 70000));
  all_samples({});  // reads no starts of documents
  for (const PackingConfig packing : {PackingConfig{true, 1}, PackingConfig{true, 64}})
    expect_error([&] { all_samples(packing); }, {"c.h5: /train/documents is damaged", "do not match their hash"});
}

// --- Wrong contents with right hashes ---------------------------------------------------------------------------

TEST(CraftedCorpus, StartsOfDocumentsMustAscendAndBeInside) {
  TempFolder folder;
  const std::string path = write_random_documents(folder / "c.h5", 20000, 257);
  const SealedCorpus good(path);
  const SplitIndex& s = good.index.splits[0];
  const std::uint64_t documents = s.documents;
  ASSERT_GT(documents, 16384u);
  const auto wrong = [&](std::uint64_t document, std::uint64_t start) {
    SealedCorpus bad = good;
    bad.at<std::uint64_t>(s.start_data.offset + 8 * document) = start;
    bad.seal_and_save(path);
    TokenStore::open(path);
    for (const std::int64_t align : {1, 8}) {
      expect_error(
          [&] {
            Loader loader(open_corpus(path), {.context = 512, .rows = 16, .packing = {true, align}});
            for (int i = 0; i < 60; ++i) loader.next();
          },
          {"c.h5 (train) is damaged", "starts at token", "data prepare"});
    }
  };
  wrong(0, 1);
  wrong(100, 0);                   // before the previous start
  wrong(100, s.tokens + 1);        // beyond the end
  wrong(8192, 5);                  // the first start of a block
  wrong(8191, s.tokens);           // the last start of a block, above the next one
  wrong(documents, s.tokens - 1);  // the end of the last document
  wrong(documents, ~std::uint64_t{});
}

TEST(CraftedCorpus, TokensOutsideTheVocabularyAreNamed) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(50000), {});
  SealedCorpus bad(path);
  bad.at<std::uint16_t>(bad.index.splits[0].token_data.offset + 2 * 43210) = 999;
  bad.seal_and_save(path);
  const auto store = TokenStore::open(path);
  std::vector<std::int32_t> out(100);
  store->train().read(4000, 100, out.data());
  expect_error([&] { store->train().read(43000, 100, out.data()); },
               {"c.h5 (train)", "token 999 at position 43210", "vocabulary has 257", "make it again"});
}

TEST(CraftedCorpus, AnIndexThatContradictsItselfIsNamed) {
  TempFolder folder;
  const std::string path = write_random_documents(folder / "c.h5", 100, 257);
  const SealedCorpus good(path);
  const auto wrong = [&](auto&& change, const std::string& part) {
    SealedCorpus bad = good;
    change(bad.index);
    bad.seal_index_and_save(path);
    expect_error([&] { TokenStore::open(path); }, {"c.h5", part});
  };
  const std::uint64_t huge = ~std::uint64_t{};
  wrong([](CorpusIndex& i) { i.version = 4; }, "format 4");
  wrong([](CorpusIndex& i) { i.chat_template = i.tokenizer; }, "format 2 has neither");
  wrong([](CorpusIndex& i) { i.vocab_size = 0; }, "a vocabulary of 0 tokens");
  wrong([&](CorpusIndex& i) { i.vocab_size = huge; }, "a vocabulary of 18446744073709551615 tokens");
  wrong([](CorpusIndex& i) { i.vocab_size = 100000; }, "is inconsistent");
  wrong([](CorpusIndex& i) { i.block_bytes = 0; }, "blocks of 0 bytes");
  wrong([](CorpusIndex& i) { i.file_bytes += 1; }, "is truncated");
  wrong([](CorpusIndex& i) { i.structure_hash ^= 1; }, "do not match their hash");
  wrong([&](CorpusIndex& i) { i.tokenizer.offset = huge; }, "is inconsistent");
  wrong([&](CorpusIndex& i) { i.tokenizer.bytes = huge; }, "is inconsistent");
  for (std::size_t split = 0; split < 2; ++split) {
    wrong([&](CorpusIndex& i) { i.splits[split].tokens = huge / 2 + 2; }, "is inconsistent");
    wrong([&](CorpusIndex& i) { i.splits[split].tokens += 1; }, "is inconsistent");
    wrong([&](CorpusIndex& i) { i.splits[split].tokens = 0; }, "0 tokens in");
    wrong([&](CorpusIndex& i) { i.splits[split].documents = huge; }, "documents");
    wrong([&](CorpusIndex& i) { i.splits[split].documents = 0; }, "in 0 documents");
    for (auto member :
         {&SplitIndex::token_data, &SplitIndex::start_data, &SplitIndex::token_hashes, &SplitIndex::start_hashes}) {
      wrong([&](CorpusIndex& i) { (i.splits[split].*member).bytes = huge; }, "is inconsistent");
      wrong([&](CorpusIndex& i) { (i.splits[split].*member).offset = huge - 8; }, "is inconsistent");
      wrong([&](CorpusIndex& i) { (i.splits[split].*member).offset = 0; }, "belong to two sections");
      wrong([&](CorpusIndex& i) { (i.splits[split].*member).offset = i.tokenizer.offset; }, "belong to two sections");
    }
  }
  SealedCorpus other = good;
  other.at<char>(good.index.tokenizer.offset + 30) ^= 1;
  other.seal_structure_and_save(path);
  expect_error([&] { TokenStore::open(path)->tokenizer(); }, {"c.h5 is damaged", "its second line"});
}

// --- Files that are no corpora ------------------------------------------------------------------------------------

TEST(NoCorpus, ErrorsNameTheKindOfFile) {
  TempFolder folder;
  const auto refused = [&](const std::string& path, const std::vector<std::string>& parts) {
    expect_error([&] { TokenStore::open(path); }, parts);
    expect_error([&] { load_tokenizer(path); }, {path});
  };
  write_text(folder / "file", "text");
  refused(folder / "none.h5", {"none.h5", "No such file", "data.path"});
  refused(folder / "file/c.h5", {"file/c.h5", "Not a directory"});
  refused(folder.path(), {folder.path(), "is a directory"});
  std::filesystem::create_symlink("loop.h5", folder / "loop.h5");
  refused(folder / "loop.h5", {"loop.h5", "symbolic links"});
  ASSERT_EQ(::mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  refused(folder / "pipe.h5", {"pipe.h5", "a named pipe"});
  refused("/dev/zero", {"/dev/zero", "a device"});
  write_text(folder / "old.h5", "\x89HDF\r\n\x1a\n and so on");
  refused(folder / "old.h5", {"old.h5 is an HDF5 file", "data prepare"});
  expect_error([&] { TokenStore::open(folder / "file"); }, {"file is text", "ringmaster data prepare --input "});
  write_text(folder / "empty.h5", "");
  expect_error([&] { TokenStore::open(folder / "empty.h5"); }, {"empty.h5 is not", "(0 bytes)"});
}

TEST(NoCorpus, AnUnreadableFileIsReportedAsPermissionDenied) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(100), {});
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const uid_t user = ::geteuid();
  if (user == 0 && ::seteuid(65534) != 0) GTEST_SKIP() << "root may read any file, and cannot be somebody else here";
  expect_error([&] { TokenStore::open(path); }, {"c.h5", "Permission denied"});
  expect_error([&] { load_tokenizer(path); }, {"c.h5", "Permission denied"});
  ASSERT_EQ(::seteuid(user), 0);
}

}  // namespace
}  // namespace ring
