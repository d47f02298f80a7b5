#pragma once
// How both ends of a connection to the store prove that they know the cookie without sending it: each end sends a
// nonce, and proves itself with the HMAC of both nonces, with the cookie as the key. The client proves itself first, so
// that a stranger learns nothing except a nonce.
//
//   client: hello                     server: its number
//   client: its number, its proof     server: its proof; or "refused", and the connection is closed

#include <string>

#include "job/secret.h"

namespace ring::store_handshake {

inline constexpr std::size_t kNumber = 32;  // characters of a nonce made by random_cookie()

inline std::string proof(const std::string& cookie, const char* side, const std::string& server_number,
                         const std::string& client_number) {
  return hmac(cookie, std::string("ringmaster store, ") + side + ": " + server_number + client_number);
}
inline std::string client_says(const std::string& cookie, const std::string& server_number,
                               const std::string& client_number) {
  return client_number + proof(cookie, "client", server_number, client_number);
}
inline bool client_knows(const std::string& cookie, const std::string& server_number, const std::string& said) {
  return said.size() > kNumber && same_secret(said, client_says(cookie, server_number, said.substr(0, kNumber)));
}

}  // namespace ring::store_handshake
