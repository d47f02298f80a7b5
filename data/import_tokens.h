#pragma once
// Documents that are tokens already, as a corpus.

#include <functional>

#include "data/preparation.h"
#include "data/prepare_plan.h"
#include "data/token_store.h"

namespace ring {

// Copies the documents of the plan's data sets. Those that do not end with the tokenizer's end-of-text token get it;
// nothing else is changed. Error: see MegatronDataset.
void import_tokens(const PreparePlan&, const PrepareOptions&, TokenStoreWriter&, PrepareReport&,
                   const std::function<void(const PrepareProgress&)>& progress);

}  // namespace ring
