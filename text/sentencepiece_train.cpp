#include "text/sentencepiece_train.h"

#include <poll.h>
#include <sentencepiece_trainer.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <iostream>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/interrupted.h"
#include "text/sentencepiece_normalizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring {
namespace {

constexpr std::size_t kSentenceBytes = 8192;

// Passes text to the library, which expects sentences: here, parts of the text that end after a newline or before a
// space.
class Sentences final : public sentencepiece::SentenceIterator {
 public:
  void add(std::string_view text) {
    while (!text.empty()) {
      const std::size_t cut = text.size() <= kSentenceBytes ? text.size() : cut_of(text.substr(0, kSentenceBytes));
      sentences_.push_back(clean(text.substr(0, cut)));
      text.remove_prefix(cut);
    }
  }
  bool done() const override { return next_ >= sentences_.size(); }
  void Next() override { ++next_; }
  const std::string& value() const override { return sentences_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  static std::size_t cut_of(std::string_view text) {
    for (const char c : {'\n', ' '}) {
      const std::size_t at = text.rfind(c);
      // Splits after a newline, but before a space, because a space begins a word.
      if (at != std::string_view::npos && at > 0) return at + (c == '\n');
    }
    return utf8::floor_boundary(text, text.size() - 4);
  }

  // Replaces text that the library cannot learn by spaces: bytes that are not UTF-8, the library's own space symbol,
  // NUL.
  static std::string clean(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      std::size_t n = utf8::valid_length(text);
      const bool learnable = n > 0 && text[0] != '\0' && text.substr(0, n) != kSpaceSymbol;
      if (learnable)
        out += text.substr(0, n);
      else
        out += ' ';
      text.remove_prefix(n ? n : 1);
    }
    return out;
  }

  std::vector<std::string> sentences_;
  std::size_t next_ = 0;
};

std::unordered_map<std::string, std::string> arguments(const SentencePieceOptions& options) {
  return {{"model_type", options.kind},
          {"vocab_size", std::to_string(options.vocab_size)},
          {"character_coverage", std::to_string(options.character_coverage)},
          {"normalization_rule_name", "identity"},
          {"add_dummy_prefix", "false"},
          {"remove_extra_whitespaces", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"byte_fallback", "true"},
          {"split_digits", "false"},
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"eos_piece", "<|endoftext|>"},
          {"max_sentence_length", std::to_string(2 * kSentenceBytes)},
          {"num_threads", "16"},  // fixed, because sums of floats depend on it
          {"minloglevel", "1"}};
}

constexpr int kNoText = 3;  // exit status of the child if the text could not be read

// Runs in the child process: writes the model to `out`, and errors to standard error. Returns the exit status.
int train_in_child(const TextSource& source, const SentencePieceOptions& options, int out) {
  Sentences sentences;
  try {
    source([&](std::string_view text) { sentences.add(text); });
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return kNoText;
  }
  try {
    std::string model;
    const auto status = sentencepiece::SentencePieceTrainer::Train(arguments(options), &sentences, &model);
    if (!status.ok()) {
      std::cerr << status.ToString() << std::endl;
      return 1;
    }
    for (std::size_t done = 0; done < model.size();) {
      const ssize_t n = ::write(out, model.data() + done, model.size() - done);
      if (n < 0 && errno != EINTR) return 1;
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 1;
  }
}

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (::pipe(ends.data()) != 0) fail("cannot start the training of a vocabulary: pipe: ", std::strerror(errno));
  }
  ~Pipe() { close(0), close(1); }
  void close(std::size_t end) {
    if (ends[end] >= 0) ::close(std::exchange(ends[end], -1));
  }
};

// Reads both pipes until the child closes them.
void collect(Pipe& model_pipe, Pipe& log_pipe, std::string& model, std::string& log) {
  std::array<char, 65536> buffer;
  std::array<pollfd, 2> polls{{{model_pipe.ends[0], POLLIN, 0}, {log_pipe.ends[0], POLLIN, 0}}};
  while (polls[0].fd >= 0 || polls[1].fd >= 0) {
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR)
      fail("cannot train a vocabulary: poll: ", std::strerror(errno));
    for (std::size_t i = 0; i < 2; ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      const ssize_t n = ::read(polls[i].fd, buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        polls[i].fd = -1;
      else
        (i == 0 ? model : log).append(buffer.data(), static_cast<std::size_t>(n));
    }
    if (log.size() > 65536) log.erase(0, log.size() - 4096);
  }
}

std::string tail(std::string text, std::size_t lines) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::size_t at = text.size();
  for (std::size_t i = 0; i < lines && at != std::string::npos && at > 0; ++i) at = text.rfind('\n', at - 1);
  return at == std::string::npos || at == 0 ? text : text.substr(at + 1);
}

// Returns the number after the last occurrence of `words` in the text; nullopt if there is none.
std::optional<std::int64_t> number_after(const std::string& text, std::string_view words) {
  const std::size_t at = text.rfind(words);
  if (at == std::string::npos) return {};
  std::int64_t number = 0;
  const char* begin = text.data() + at + words.size();
  const bool read = std::from_chars(begin, text.data() + text.size(), number).ec == std::errc();
  return read ? std::optional(number) : std::nullopt;
}

constexpr std::int64_t kMinVocabulary = 300;

// Throws Error if the library refused the vocabulary size: "Vocabulary size too high (5000). Please set it to a value
// <= 332." or "Vocabulary size is smaller than required_chars. 300 vs 2258."
void check_refused_size(const std::string& log, const SentencePieceOptions& options) {
  const auto max_size = number_after(log, "Please set it to a value <= "), min_size = number_after(log, " vs ");
  if (max_size && log.find("Vocabulary size too high") != std::string::npos)
    fail(options.text, " yields a ", options.kind, " vocabulary of at most ", *max_size,
         " tokens, but --vocab-size asks for ", options.vocab_size, ". Provide more text",
         *max_size < kMinVocabulary
             ? std::string(", or use --kind byte-bpe, which stops at the size that the text yields")
             : str(", or use --vocab-size ", *max_size, " or less"));
  if (min_size && log.find("smaller than required_chars") != std::string::npos)
    fail(options.text, " needs at least ", *min_size,
         " tokens for its characters and bytes, but --vocab-size asks for ", options.vocab_size,
         ". Increase --vocab-size, or spell rare characters in bytes with a --character-coverage below ",
         options.character_coverage);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return str("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  return str("ended with status ", WEXITSTATUS(status));
}

}  // namespace

std::shared_ptr<const Tokenizer> train_sentencepiece(const TextSource& source, const SentencePieceOptions& options) {
  if (options.kind != "bpe" && options.kind != "unigram") {
    fail("unknown kind of SentencePiece vocabulary '", options.kind, "'; known kinds: bpe, unigram");
  }
  if (options.vocab_size < kMinVocabulary) {
    fail("a vocabulary of ", options.vocab_size,
         " tokens is too small: 258 are needed for bytes and control tokens. Use ", kMinVocabulary, " or more");
  }
  Pipe model_pipe, log_pipe;
  std::cout.flush(), std::cerr.flush();
  const pid_t child = ::fork();
  if (child < 0) fail("cannot start the training of a vocabulary: fork: ", std::strerror(errno));
  if (child == 0) {
    ::dup2(log_pipe.ends[1], STDERR_FILENO);
    ::dup2(log_pipe.ends[1], STDOUT_FILENO);
    model_pipe.close(0), log_pipe.close(0);
    ::_exit(train_in_child(source, options, model_pipe.ends[1]));
  }
  model_pipe.close(1), log_pipe.close(1);
  std::string model, log;
  collect(model_pipe, log_pipe, model, log);
  int status = 0;
  uninterrupted([&] { return ::waitpid(child, &status, 0); });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoText) fail(tail(log, 1));
  if (status != 0 || model.empty()) {
    check_refused_size(log, options);
    fail("SentencePiece could not train a ", options.kind, " vocabulary of ", options.vocab_size, " tokens from ",
         options.text, " (", how_it_ended(status), "): ", tail(log, 5), "\nTry a different --vocab-size or --kind");
  }
  return sentencepiece_tokenizer(std::move(model), "the trained model");
}

}  // namespace ring
