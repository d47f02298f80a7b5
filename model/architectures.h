#pragma once
// The architectures that model.architecture may name.

#include <functional>
#include <memory>
#include <string>

#include "model/model.h"

namespace ring {

// Declares a model. vocab_padding: the row count of each table in vocab_tables() is padded to a multiple of it.
using MakeModel = std::function<std::unique_ptr<Model>(const ModelConfig&, std::int64_t vocab_padding)>;

// Adds an architecture. Call before settings are read.
void add_architecture(const std::string& name, MakeModel);
void remove_architecture(const std::string& name);

// Declares the model that the settings describe; allocate() fills it. Throws Error if the settings name no
// architecture.
std::unique_ptr<Model> make_model(const ModelConfig&, std::int64_t vocab_padding = 1);

}  // namespace ring
