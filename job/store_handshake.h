#pragma once
// Handshake in which both ends of a connection to the store prove that they know the cookie without sending it. Each
// end sends a nonce; its proof is the HMAC of both nonces, with the cookie as the key. The client proves itself first,
// so that a stranger learns nothing except a nonce.
//
//   client: hello                     server: its nonce
//   client: its nonce, its proof      server: its proof; or "refused", and the connection is closed

#include <string>

#include "job/secret.h"

namespace ring::store_handshake {

inline constexpr std::size_t kNonceSize = 32;  // in characters

inline std::string random_nonce() { return random_cookie(); }

inline std::string proof(const std::string& cookie, const char* side, const std::string& server_nonce,
                         const std::string& client_nonce) {
  return hmac(cookie, std::string("ringmaster store, ") + side + ": " + server_nonce + client_nonce);
}
inline std::string client_says(const std::string& cookie, const std::string& server_nonce,
                               const std::string& client_nonce) {
  return client_nonce + proof(cookie, "client", server_nonce, client_nonce);
}
inline bool client_knows(const std::string& cookie, const std::string& server_nonce, const std::string& said) {
  return said.size() > kNonceSize && same_secret(said, client_says(cookie, server_nonce, said.substr(0, kNonceSize)));
}

}  // namespace ring::store_handshake
