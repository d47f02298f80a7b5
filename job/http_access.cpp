#include "job/http_access.h"

#include <openssl/evp.h>

#include <optional>
#include <regex>

#include "core/check.h"
#include "job/secret.h"

namespace ring {
namespace {

constexpr std::size_t kMaxHost = 300;  // in bytes; a DNS name has at most 253

std::string base64(const std::string& text) {
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');  // EVP_EncodeBlock adds a final 0
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes, static_cast<int>(text.size()));
  out.pop_back();
  return out;
}

// Returns e.g. "localhost" for "localhost:8080" and "::1" for "[::1]:8080"; nullopt for a text that is not HOST or
// HOST:PORT.
std::optional<std::string> host_of(const std::string& header) {
  static const std::regex form(R"((?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::[0-9]{0,5})?)");
  std::smatch parts;
  if (header.size() > kMaxHost || !std::regex_match(header, parts, form)) return std::nullopt;
  return parts[1].matched ? parts[1] : parts[2];
}

bool names_this_machine(const std::string& header) { return is_loopback(host_of(header).value_or("")); }

}  // namespace

HttpAccess::HttpAccess(const Endpoint& at, const std::string& token) {
  if (token.empty() && !is_loopback(at.host))
    fail("other machines can reach ", to_string(at),
         ", so a token is required: give a file with a token, or listen on 127.0.0.1");
  if (token.empty()) return;
  bearer_ = "Bearer " + token;
  basic_ = "Basic " + base64(str(kHttpUser, ":", token));
}

int HttpAccess::refusal_status(const HttpVisitor& v) const {
  if (!v.host.empty() && !host_of(v.host)) return 400;
  if (!bearer_.empty()) {
    const bool known = same_secret(v.authorization, bearer_) || same_secret(v.authorization, basic_);
    return known ? 0 : 401;
  }
  const bool here = v.host.empty() || names_this_machine(v.host);
  const std::string http = "http://";
  const bool own = v.origin.empty() || (v.origin.starts_with(http) && names_this_machine(v.origin.substr(http.size())));
  return here && own ? 0 : 403;
}

}  // namespace ring
