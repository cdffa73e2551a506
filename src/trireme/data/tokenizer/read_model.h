// data/tokenizer/read_model.h -- the model of a tokenizer.json, which can be large and is read without a tree.
//
// Depends on: description, formats.
#pragma once

#include "trireme/data/tokenizer/description.h"
#include "trireme/formats/json_reader.h"

namespace trireme::data {

/// BPE, WordPiece or Unigram, as the type says; in old files, which do not say it, as the members say.
ModelDescription read_model(formats::JsonReader& json);

}  // namespace trireme::data
