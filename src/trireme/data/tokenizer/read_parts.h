// data/tokenizer/read_parts.h -- the sections of a tokenizer.json around the model, from JSON to description.
//
// Depends on: description, json_section.
#pragma once

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/json_section.h"

namespace trireme::data {

NormalizerPart read_normalizer(JsonSection section);
PreTokenizerPart read_pre_tokenizer(JsonSection section);
PostProcessorPart read_post_processor(JsonSection section);
DecoderPart read_decoder(JsonSection section);
AddedToken read_added_token(JsonSection section);

}  // namespace trireme::data
