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

TEST(TokenStore, LargeVocabulariesTakeFourBytes) {
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

TEST(TokenStore, EmptySplits) {
  TempFolder folder;
  const auto store = TokenStore::open(write_corpus(folder / "c.h5", {}, {}));
  EXPECT_EQ(store->train().tokens(), 0u);
  EXPECT_EQ(store->validation().documents(), 0u);
  EXPECT_EQ(store->train().document_start(0), 0u);
}

TEST(TokenStore, ReadingPastTheEndOrWritingForeignTokens) {
  TempFolder folder;
  const auto store = TokenStore::open(write_corpus(folder / "c.h5", counting(10), {}));
  std::int32_t out[20];
  expect_error([&] { store->train().read(5, 6, out); }, {"c.h5 (train)", "has 10 tokens", "asked for 6 from 5"});
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

TEST(TokenStore, MissingAndForeignFiles) {
  TempFolder folder;
  expect_error([&] { TokenStore::open(folder / "none.h5"); }, {"none.h5", "no such file", "ringmaster data prepare"});
  expect_error([&] { TokenStore::open(folder.path()); }, {folder.path(), "directory", "ringmaster data prepare"});
  write_text(folder / "text.h5", "this is no HDF5 file");
  expect_error([&] { TokenStore::open(folder / "text.h5"); },
               {"text.h5", "not an HDF5 file", "20 bytes", "ringmaster data prepare"});
  write_text(folder / "empty.h5", "");
  expect_error([&] { TokenStore::open(folder / "empty.h5"); }, {"empty.h5", "not an HDF5 file"});
  const std::string foreign = folder / "foreign.h5";
  H5Fclose(H5Fcreate(foreign.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  expect_error([&] { TokenStore::open(foreign); },
               {"foreign.h5", "no corpus of Ringmaster", "ringmaster data prepare"});
}

TEST(TokenStore, EveryTruncationIsAnError) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(5000), counting(50));
  const auto size = std::filesystem::file_size(path);
  for (std::uintmax_t keep = size - 1; keep > 0; keep = keep * 9 / 10) {
    std::filesystem::resize_file(path, keep);
    expect_error([&] { TokenStore::open(path); }, {"c.h5", "ringmaster data prepare"});
  }
}

// Opens the file with the library, changes it, and closes it.
template <class F>
void change(const std::string& path, F&& work) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  work(file);
  H5Fclose(file);
}

void set_number(hid_t file, const char* group, const char* name, std::uint64_t value) {
  const hid_t object = H5Oopen(file, group, H5P_DEFAULT);
  const hid_t a = H5Aopen(object, name, H5P_DEFAULT);
  EXPECT_GE(H5Awrite(a, H5T_NATIVE_UINT64, &value), 0);
  H5Aclose(a);
  H5Oclose(object);
}

TEST(TokenStore, DamageIsNamed) {
  TempFolder folder;
  const std::string path = folder / "c.h5";
  const auto damaged = [&](auto&& work, const std::vector<std::string>& parts) {
    write_corpus(path, counting(5000), counting(50));
    change(path, work);
    expect_error([&] { TokenStore::open(path); }, parts);
  };
  damaged([](hid_t f) { set_number(f, "/", "format_version", 2); }, {"c.h5", "format 2", "reads format 1"});
  damaged([](hid_t f) { set_number(f, "/train", "tokens", 5001); },
          {"c.h5", "/train says 5001 tokens", "5000", "make it again"});
  damaged([](hid_t f) { set_number(f, "/validation", "documents", 3); }, {"/validation says 50 tokens in 3 documents"});
  damaged([](hid_t f) { set_number(f, "/", "vocab_size", 100000); }, {"tokens of 2 bytes", "vocabulary of 100000"});
  damaged([](hid_t f) { H5Ldelete(f, "/train/tokens", H5P_DEFAULT); }, {"no dataset /train/tokens"});
  damaged([](hid_t f) { H5Adelete_by_name(f, "/train", "text_bytes", H5P_DEFAULT); },
          {"/train has no attribute text_bytes"});
  damaged([](hid_t f) { H5Ldelete(f, "/tokenizer", H5P_DEFAULT); }, {"no dataset /tokenizer"});
  damaged(
      [](hid_t f) {
        const hid_t set = H5Dopen2(f, "/tokenizer", H5P_DEFAULT);
        const std::vector<unsigned char> zeros(100);
        EXPECT_GE(H5Dwrite(set, H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()), 0);
        H5Dclose(set);
      },
      {"c.h5", "its tokenizer has hash", bytes_tokenizer()->hash()});
}

TEST(TokenStore, ChunkedDataIsRefused) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(5000), {});
  change(path, [](hid_t f) {
    H5Ldelete(f, "/train/tokens", H5P_DEFAULT);
    const hsize_t count = 5000, chunk = 100;
    const hid_t space = H5Screate_simple(1, &count, nullptr), p = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(p, 1, &chunk);
    H5Dclose(H5Dcreate2(f, "/train/tokens", H5T_STD_U16LE, space, H5P_DEFAULT, p, H5P_DEFAULT));
    H5Pclose(p);
    H5Sclose(space);
  });
  expect_error([&] { TokenStore::open(path); }, {"c.h5", "/train/tokens is not contiguous"});
}

TEST(TokenStore, TokensOutsideTheVocabularyAreFoundWhenRead) {
  TempFolder folder;
  const std::string path = write_corpus(folder / "c.h5", counting(5000), {});
  change(path, [](hid_t f) {
    const hid_t set = H5Dopen2(f, "/train/tokens", H5P_DEFAULT);
    std::vector<std::uint16_t> tokens(5000, 3);
    tokens[4321] = 999;
    EXPECT_GE(H5Dwrite(set, H5T_NATIVE_USHORT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens.data()), 0);
    H5Dclose(set);
  });
  const auto store = TokenStore::open(path);
  std::vector<std::int32_t> out(100);
  store->train().read(4000, 100, out.data());
  expect_error([&] { store->train().read(4300, 100, out.data()); },
               {"c.h5 (train)", "token 999", "4300", "vocabulary has 257", "make it again"});
}

TEST(TokenStore, OutputThatCannotBeWritten) {
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
