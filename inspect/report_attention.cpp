#include "inspect/report_attention.h"

#include <algorithm>

#include "core/check.h"
#include "inspect/attention_picture.h"
#include "model/attention/kinds.h"
#include "model/patterns.h"

namespace ring {

std::string attention_pictures(const ModelConfig& model) {
  constexpr std::size_t kMaxPanels = 6;
  constexpr std::int64_t kCells = 64;  // cells per side; few, to keep the file small
  std::vector<Panel> panels;
  std::vector<std::string> drawn;
  for (std::int64_t layer = 0; layer < model.layers && panels.size() < kMaxPanels; ++layer) {
    const AttentionConfig& attention = attention_of(model, layer);
    const std::string text = text_of(attention);
    if (attention.kind == "dense" || std::ranges::find(drawn, text) != drawn.end()) continue;
    drawn.push_back(text);
    panels.push_back({text, str("layer ", layer, ", KV head 0, ", model.context, " tokens"),
                      cells_of(pattern_of(model, layer), 0, model.context, kCells)});
  }
  return panels.empty() ? "" : svg_picture(panels);
}

}  // namespace ring
