#pragma once
// What the SentencePiece library takes on trust of a model and ends the process over where it is not so: pieces without
// text, and tables of replacements (precompiled_charsmap) that lead out of themselves. A plain model has no hash, so a
// damaged one is found here or by the library's own checks.

#include <string>
#include <string_view>

namespace ring {

// `model`: the bytes of a SentencePiece .model file. Error names `name`.
void check_sentencepiece_model(std::string_view model, const std::string& name);

// Whether a checked model puts a blank before a text, as those of Llama 2 and Mistral do.
bool puts_blank_in_front(std::string_view model, const std::string& name);

}  // namespace ring
