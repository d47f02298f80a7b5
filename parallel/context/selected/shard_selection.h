#pragma once
// Block selections of sharded documents. Each rank selects for its own query rows.

#include "parallel/context/exchange.h"
#include "parallel/context/key_references.h"

namespace ring {

// Sets the selection of the call if its pattern selects and there is none. It covers only this rank's query rows. Only
// the block means of keys and queries are exchanged, which are small. Collective.
void select_for_own_rows(Attention&, const ContextShards&, ContextExchange&, const ExecContext&);

// Returns the keys that the selections of all ranks reference; `own` is this rank's. The host waits for the selections.
// Collective.
KeyReferences gather_references(const BlockSelection& own, const Pattern&, const ContextShards&, ContextTransfers&,
                                const ExecContext&);

}  // namespace ring
