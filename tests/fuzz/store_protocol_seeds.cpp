// Writes the kept inputs of the target store_protocol, which are scripts: store_protocol_seeds FOLDER

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "job/store_protocol.h"

namespace {

using namespace ring::store_protocol;

// Returns one step of a script: the event, the connection, and the bytes.
std::string act(int what, int who, const std::string& bytes = {}) {
  return {std::string{static_cast<char>(what), static_cast<char>(who), static_cast<char>(bytes.size())} + bytes};
}
std::string request(Op op, std::int64_t number, const std::string& key, const std::string& value = {}) {
  return encode({op, number, key, value}).substr(4);
}

constexpr int kRaw = 0, kMessage = 1, kHello = 2, kLoose = 3, kLater = 4, kClose = 5, kAnswer = 6, kRead = 7;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "usage: store_protocol_seeds FOLDER\n", 2;
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(std::filesystem::path(argv[1]) / name, std::ios::binary) << text;
  };
  const std::string hello = act(kHello, 0, "s"), other = act(kHello, 1, "s");
  write("set_get_add", hello + act(kMessage, 0, request(Op::set, 0, "k", "value")) +
                           act(kMessage, 0, request(Op::get, 0, "k")) + act(kMessage, 0, request(Op::add, 7, "n")) +
                           act(kRead, 0));
  write("wait_and_expire", hello + other + act(kMessage, 0, request(Op::get, 2000, "w")) + act(kLater, 0) +
                               act(kMessage, 0, request(Op::get, 90000, "w")) +
                               act(kMessage, 1, request(Op::set, 0, "w", "x")) + act(kRead, 0) + act(kRead, 1));
  write("lists", hello + other + act(kMessage, 1, request(Op::get, 2000, "l/1")) +
                     act(kMessage, 0, request(Op::append, 0, "l", "a")) +
                     act(kMessage, 0, request(Op::append, 0, "l", "b")) + act(kRead, 0) + act(kRead, 1));
  write("beats", hello + other + act(kMessage, 0, request(Op::beat, -1, "a")) +
                     act(kMessage, 1, request(Op::beat, 1000, "b", "done")) + act(kAnswer, 0) + act(kClose, 0) +
                     act(kMessage, 1, request(Op::beat, 0, "b")) + act(kAnswer, 1) + act(kRead, 1));
  write("strangers", act(kRaw, 0, "GET / HTTP/1.1\r\n\r\n") + act(kHello, 1, "wrong") + act(kLater, 0) +
                         act(kRaw, 2, "\xff\xff\xff\xff") +
                         act(kLoose, 3,
                             "\x04\x7f"
                             "abcd"));
  std::string pieces = hello;
  for (const char c : encode({Op::add, 1, "n", ""})) pieces += act(kRaw, 0, std::string(1, c));
  write("pieces", pieces + act(kRead, 0));
}
