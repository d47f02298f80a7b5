#include "job/secret.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "core/check.h"

namespace ring {
namespace {

// Test cases 1 and 2 of RFC 4231.
TEST(Secret, HmacMatchesTheStandard) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Secret, RandomSecretsDiffer) {
  EXPECT_EQ(random_secret().size(), 64u);
  EXPECT_NE(random_secret(), random_secret());
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abc", "abd"));
  EXPECT_FALSE(same_secret("abc", "abcd"));
}

TEST(Secret, ASecretThatCannotBeWrittenLeavesNoFile) {
  const std::string file = (std::filesystem::temp_directory_path() / str("ring_secret_", getpid())).string();
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  std::string error;
  try {
    make_secret(file);
  } catch (const Error& e) {
    error = e.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write the secret '" + file + "': File too large");
  EXPECT_FALSE(std::filesystem::exists(file));
}

// Writes `text` to a secret file that only its owner can read. Returns the error of reading it; "" if it is accepted.
std::string refusal_of(const std::string& text) {
  const std::string file = (std::filesystem::temp_directory_path() / str("ring_secret_text_", getpid())).string();
  std::ofstream(file, std::ios::binary) << text;
  chmod(file.c_str(), 0600);
  std::string error;
  try {
    read_secret(file);
  } catch (const Error& e) {
    error = e.what();
    EXPECT_NE(error.find(file), std::string::npos) << error;
  }
  std::filesystem::remove(file);
  return error;
}

TEST(Secret, InvalidSecretsAreRefused) {
  EXPECT_EQ(refusal_of(std::string(kMaxSecret, 's') + std::string(1000, '\n')), "");
  for (const std::size_t more : {1, 5000})
    EXPECT_NE(refusal_of(std::string(kMaxSecret + more, 's')).find("at most 4096 characters"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(64, '\0')).find("its byte 1 is 0"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(40, 's') + "\n" + std::string(40, 's')).find("its byte 41 is 10"),
            std::string::npos);
  EXPECT_EQ(refusal_of("a passphrase with blanks and \xC3\xA4 in it"), "");
  EXPECT_NE(refusal_of(std::string(31, 's')).find("at least 32"), std::string::npos);
}

TEST(Secret, PipesAndDevicesAreRefusedWithoutWaiting) {
  const std::string pipe = (std::filesystem::temp_directory_path() / str("ring_secret_pipe_", getpid())).string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& file : {pipe, std::string("/dev/zero"), std::string("/")}) {
    std::string error;
    try {
      read_secret(file);
    } catch (const Error& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("cannot read the secret " + file + ": it is a "), std::string::npos) << error;
  }
  std::filesystem::remove(pipe);
}

TEST(Secret, FilesMustBePrivateToTheirOwner) {
  std::string folder = (std::filesystem::temp_directory_path() / "ring_secret_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/s";
  make_secret(file);
  EXPECT_EQ(read_secret(file).size(), 64u);
  std::ofstream(folder + "/marked") << "\xEF\xBB\xBF" << read_secret(file) << "\r\n";  // as written by Windows
  chmod((folder + "/marked").c_str(), 0600);
  EXPECT_EQ(read_secret(folder + "/marked"), read_secret(file));
  struct stat facts {};
  ASSERT_EQ(stat(file.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  EXPECT_THROW(make_secret(file), Error) << "it is not replaced";
  chmod(file.c_str(), 0640);
  EXPECT_THROW(read_secret(file), Error) << "others can read it";
  std::ofstream(folder + "/short") << "secret\n";
  chmod((folder + "/short").c_str(), 0600);
  EXPECT_THROW(read_secret(folder + "/short"), Error);
  EXPECT_THROW(read_secret(folder + "/none"), Error);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ring
