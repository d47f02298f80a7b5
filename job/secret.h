#pragma once
// Secrets shared by the processes of a job, and HMAC-SHA-256 (OpenSSL's libcrypto).

#include <string>

namespace ring {

inline constexpr std::size_t kMinSecret = 32;  // minimum number of characters; 128 bits in hexadecimal
inline constexpr std::size_t kMaxSecret = 4096;

std::string hmac(const std::string& key, const std::string& text);  // returns 64 hexadecimal digits
bool same_secret(const std::string& a, const std::string& b);       // compares in constant time
std::string random_cookie();                                        // returns 128 bits in hexadecimal; also a nonce
std::string random_secret();                                        // returns 256 bits in hexadecimal

// Returns the file's text without blank space at the end. Throws Error, which names the file, if the file cannot be
// read, if users other than its owner can read it, or if it does not contain a secret (see checked_secret()).
std::string read_secret(const std::string& file);
// Returns `secret`. Throws Error, which names its source, if it is shorter than kMinSecret or longer than kMaxSecret,
// or contains a control character.
std::string checked_secret(const std::string& secret, const std::string& source);
// Creates a file with a new secret that only the file's owner can read. Throws Error if the file exists or cannot be
// written.
void make_secret(const std::string& file);

// Instructions for creating a secret, for messages.
inline constexpr const char* kMakeSecret =
    "make one with `ringmaster launch --make-secret FILE`, copy it to every node, and give --secret-file FILE or "
    "RINGMASTER_SECRET";

}  // namespace ring
