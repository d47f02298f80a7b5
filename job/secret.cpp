#include "job/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "core/byte_order_mark.h"
#include "core/check.h"
#include "core/interrupted.h"
#include "core/regular_file.h"
#include "job/socket.h"

namespace ring {
namespace {

std::string hexadecimal(std::span<const unsigned char> bytes) {
  std::string out;
  for (const unsigned char b : bytes) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

std::string random_text(std::size_t bytes) {
  std::vector<unsigned char> random(bytes);
  RING_CHECK(getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes), "getrandom failed");
  return hexadecimal(random);
}

}  // namespace

std::string hmac(const std::string& key, const std::string& text) {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const auto* message = reinterpret_cast<const unsigned char*>(text.data());
  RING_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message, text.size(), out, &size),
             "libcrypto has no HMAC-SHA-256");
  return hexadecimal({out, size});
}

bool same_secret(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_cookie() { return random_text(16); }
std::string random_secret() { return random_text(32); }

std::string checked_secret(const std::string& secret, const std::string& source) {
  if (secret.size() < kMinSecret)
    fail(source, ": a secret of ", secret.size(), " characters can be guessed; it must have at least ", kMinSecret,
         ": ", kMakeSecret);
  if (secret.size() > kMaxSecret)
    fail(source, ": expected a secret of at most ", kMaxSecret, " characters, got more: ", kMakeSecret);
  const auto wrong = std::ranges::find_if(secret, [](unsigned char c) { return c < ' ' || c == 0x7F; });
  if (wrong != secret.end())
    fail(source, ": expected one line of text, got a control character (its byte ", wrong - secret.begin() + 1, " is ",
         static_cast<int>(*wrong), "): ", kMakeSecret);
  return secret;
}

std::string read_secret(const std::string& file) {
  const Fd fd(open_regular("read the secret", file, O_RDONLY));
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0) fail("cannot read the secret ", file, ": ", std::strerror(errno));
  if (facts.st_mode & (S_IRWXG | S_IRWXO))
    fail("the secret '", file, "' can be read by other users; run: chmod 600 ", file);
  std::string text(2 * kMaxSecret, '\0');  // includes space for trailing blank space
  std::size_t filled = 0;
  for (ssize_t n = 1; n > 0 && filled < text.size(); filled += static_cast<std::size_t>(n)) {
    n = uninterrupted([&] { return read(fd.get(), text.data() + filled, text.size() - filled); });
    if (n < 0) fail("cannot read the secret ", file, ": ", std::strerror(errno));
  }
  text.resize(filled);
  text.resize(text.find_last_not_of(" \t\r\n") + 1);
  text = without_byte_order_marks(text);
  return checked_secret(text, "the secret '" + file + "'");
}

void make_secret(const std::string& file) {
  const std::string text = random_secret() + "\n";
  const Fd fd(uninterrupted([&] { return open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); }));
  if (!fd && errno == EEXIST) fail("the secret '", file, "' already exists: use it, or remove it first");
  if (!fd) fail("cannot create the secret '", file, "': ", std::strerror(errno));
  const ssize_t written = uninterrupted([&] { return write(fd.get(), text.data(), text.size()); });
  if (written == std::ssize(text) && uninterrupted([&] { return fsync(fd.get()); }) == 0) return;
  const int error = errno;
  unlink(file.c_str());
  fail("cannot write the secret '", file, "': ", std::strerror(error));
}

}  // namespace ring
