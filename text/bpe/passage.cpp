#include "text/bpe/passage.h"

namespace ring::bpe {

void Passage::prepend(std::string_view front) {
  text.insert(0, front);
  if (!origins.empty()) origins.insert(origins.begin(), front.size(), origins.front());
}

void Passage::replace(std::string_view from, std::string_view to) {
  std::string replaced;
  Origins places;
  std::size_t done = 0;
  const auto keep = [&](std::size_t end) {
    replaced.append(text, done, end - done);
    if (!origins.empty())
      places.insert(places.end(), origins.begin() + static_cast<std::ptrdiff_t>(done),
                    origins.begin() + static_cast<std::ptrdiff_t>(end));
  };
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    keep(at);
    done = at + from.size();
    replaced += to;
    if (!origins.empty()) places.insert(places.end(), to.size(), origins[done - 1]);
  }
  keep(text.size());
  text = std::move(replaced);
  origins = std::move(places);
}

}  // namespace ring::bpe
