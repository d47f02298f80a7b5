#pragma once
// Imports documents that are already tokenized into a corpus.

#include <functional>

#include "data/preparation.h"
#include "data/prepare_plan.h"
#include "data/token_store.h"

namespace ring {

// Copies the documents of the plan's data sets, and appends the tokenizer's end-of-text token where it is missing.
// Nothing else is changed. Throws the errors of MegatronDataset.
void import_tokens(const PreparePlan&, const PrepareOptions&, TokenStoreWriter&, PrepareReport&,
                   const std::function<void(const PrepareProgress&)>& progress);

}  // namespace ring
