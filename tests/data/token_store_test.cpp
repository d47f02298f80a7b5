#include "data/token_store.h"

#include <hdf5.h>

#include "corpus_case.h"

namespace ring {
namespace {

std::vector<std::int32_t> read_all(const TokenSplit& split) {
  std::vector<std::int32_t> out(split.tokens());
  split.read(0, out.size(), out.data());
  return out;
}

TEST(TokenStore, ReadsWhatWasWritten) {
  TempFolder folder;
  const auto train = counting(100000, 257), validation = counting(77, 100);
  const std::string path = folder / "c.h5";
  {
    TokenStoreWriter writer(path, 257);
    for (std::size_t d = 0; d < 100; ++d) {
      writer.begin_document(Split::train);
      writer.append(Split::train, std::span(train).subspan(d * 1000, 1000));
      writer.add_text_bytes(Split::train, 999);
    }
    writer.begin_document(Split::validation);
    writer.append(Split::validation, validation);
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.finish(*bytes_tokenizer(), "where it came from");
  }
  const auto store = TokenStore::open(path);
  EXPECT_EQ(read_all(store->train()), train);
  EXPECT_EQ(read_all(store->validation()), validation);
  EXPECT_EQ(store->train().documents(), 100u);
  EXPECT_EQ(store->train().document_start(7), 7000u);
  EXPECT_EQ(store->train().document_start(100), 100000u);
  EXPECT_EQ(store->train().text_bytes(), 99900u);
  EXPECT_EQ(store->vocab_size(), 257);
  EXPECT_EQ(store->source(), "where it came from");
  EXPECT_EQ(store->tokenizer()->kind(), "bytes");
  EXPECT_EQ(store->tokenizer_hash(), bytes_tokenizer()->hash());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) files += entry.exists();
  EXPECT_EQ(files, 1) << "temporary files were left";
}

std::shared_ptr<const Tokenizer> large_vocabulary(std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {  // planes 1 to 16: four bytes each
    const auto c = static_cast<std::uint32_t>(0x10000 + i);
    text += {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
             static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
  }
  return chars_tokenizer(text);
}

TEST(TokenStore, LargeVocabulariesUseFourBytesPerToken) {
  TempFolder folder;
  for (std::int32_t vocab : {65535, 65536, 65537, 70000}) {
    const auto tokenizer = large_vocabulary(static_cast<std::size_t>(vocab));
    ASSERT_EQ(tokenizer->vocab_size(), vocab);
    std::vector<std::int32_t> tokens{0, vocab - 1, 1, vocab - 1};
    tokens.resize(100000);
    const auto store = TokenStore::open(write_corpus(folder / "c.h5", tokens, {}, tokenizer));
    EXPECT_EQ(read_all(store->train()), tokens) << vocab;
    EXPECT_EQ(std::filesystem::file_size(folder / "c.h5") > 600000, vocab > 65536) << vocab;
  }
}

TEST(TokenStore, SplitsMayBeEmpty) {
  TempFolder folder;
  const auto store = TokenStore::open(write_corpus(folder / "c.h5", {}, {}));
  EXPECT_EQ(store->train().tokens(), 0u);
  EXPECT_EQ(store->validation().documents(), 0u);
  EXPECT_EQ(store->train().document_start(0), 0u);
}

TEST(TokenStore, ReadingPastTheEndAndWritingForeignTokensAreRefused) {
  TempFolder folder;
  const auto store = TokenStore::open(write_corpus(folder / "c.h5", counting(10), {}));
  std::int32_t out[20];
  expect_error([&] { store->train().read(5, 6, out); },
               {"c.h5 (train)", "has 10 tokens", "but 6 were requested from 5"});
  expect_error([&] { store->train().read(11, 0, out); }, {"has 10 tokens"});
  TokenStoreWriter writer(folder / "d.h5", 257);
  writer.begin_document(Split::train);
  for (std::int32_t bad : {257, -1}) {
    expect_error(
        [&] {
          writer.append(Split::train, std::vector<std::int32_t>{0, bad});
        },
        {"outside the vocabulary of 257"});
  }
}

TEST(TokenStore, FindsTheDocumentOfEveryToken) {
  TempFolder folder;
  std::vector<std::uint64_t> starts{0};
  {
    TokenStoreWriter writer(folder / "c.h5", 257);
    for (std::size_t d = 0; d < 10000; ++d) {  // more than one block of starts, and some empty documents
      writer.begin_document(Split::train);
      writer.append(Split::train, counting(d * 7919 % 5));
      starts.push_back(starts.back() + d * 7919 % 5);
    }
    writer.finish(*bytes_tokenizer(), "a test");
  }
  const auto store = TokenStore::open(folder / "c.h5");
  DocumentStarts from(store->train());
  for (std::uint64_t token = 0; token < starts.back(); token += 3) {
    const std::uint64_t document = from.document_of(token * 104729 % starts.back());
    EXPECT_LE(starts[document], token * 104729 % starts.back());
    EXPECT_GT(starts[document + 1], token * 104729 % starts.back());
    EXPECT_EQ(from(document), starts[document]);
  }
  for (std::uint64_t d = 0; d <= 10000; ++d) EXPECT_EQ(from(d), starts[d]);
  expect_error([&] { from(10001); }, {"c.h5 (train)", "10000 documents"});
  expect_error([&] { from.document_of(starts.back()); }, {"c.h5 (train)"});
}

// The file is read with the HDF5 library alone.
TEST(TokenStore, IsAnHdf5File) {
  TempFolder folder;
  const auto train = counting(100000, 257);
  const std::string path = write_corpus(folder / "c.h5", train, counting(50));
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  std::vector<std::int32_t> tokens(train.size());
  const hid_t set = H5Dopen2(file, "/train/tokens", H5P_DEFAULT);
  EXPECT_GE(H5Dread(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data()), 0);
  EXPECT_EQ(tokens, train);
  std::uint64_t starts[2] = {7, 7};
  const hid_t documents = H5Dopen2(file, "/train/documents", H5P_DEFAULT);
  EXPECT_GE(H5Dread(documents, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, starts), 0);
  EXPECT_EQ(starts[0], 0u);
  EXPECT_EQ(starts[1], 100000u);
  std::uint64_t vocab = 0;
  const hid_t attribute = H5Aopen(file, "vocab_size", H5P_DEFAULT);
  EXPECT_GE(H5Aread(attribute, H5T_NATIVE_UINT64, &vocab), 0);
  EXPECT_EQ(vocab, 257u);
  H5Aclose(attribute), H5Dclose(documents), H5Dclose(set), H5Fclose(file);
}

TEST(TokenStore, TheHashDependsOnTokensAndDocuments) {
  TempFolder folder;
  const auto hash = [&](const std::vector<std::int32_t>& tokens, std::size_t first_document) {
    TokenStoreWriter writer(folder / "c.h5", 257);
    for (const auto part : {std::span(tokens).first(first_document), std::span(tokens).subspan(first_document)}) {
      writer.begin_document(Split::train);
      writer.append(Split::train, part);
    }
    writer.finish(*bytes_tokenizer(), "a test");
    return TokenStore::open(folder / "c.h5")->train().tokens_hash();
  };
  const std::string whole = hash(counting(100000), 10);
  EXPECT_EQ(hash(counting(100000), 10), whole);
  EXPECT_NE(hash(counting(100000), 11), whole) << "other documents";
  EXPECT_NE(hash(counting(100000, 255), 10), whole) << "other tokens";
}

TEST(TokenStore, OutputThatCannotBeWrittenIsNamed) {
  TempFolder folder;
  expect_error([&] { TokenStoreWriter(folder / "none/c.h5", 257); }, {"none/c.h5", "does not exist", "create it"});
  expect_error([&] { TokenStoreWriter(folder.path(), 257); }, {folder.path(), "directory"});
}

TEST(TokenStore, AnInterruptedWriterLeavesTheOldFile) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(500), {});
  {
    TokenStoreWriter writer(path, 257);
    writer.begin_document(Split::train);
    writer.append(Split::train, counting(5));
  }
  EXPECT_EQ(TokenStore::open(path)->train().tokens(), 500u);
}

}  // namespace
}  // namespace ring
