// data/tokenizer/encoding_model.h -- the model of a tokenizer, whichever kind it is, and the memory it encodes with.
//
// Depends on: bpe_model, byte_alphabet, unigram_model, wordpiece_model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/data/tokenizer/bpe_model.h"
#include "trireme/data/tokenizer/byte_alphabet.h"
#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/unigram_model.h"
#include "trireme/data/tokenizer/wordpiece_model.h"

namespace trireme::data {

/// Pieces are bytes where the vocabulary is byte-level. BPE knows that; the other models see the alphabet's letters, as
/// they do in the library.
template <typename Model>
struct OfLetters {
  struct Scratch : Model::Scratch {
    std::string letters;
  };
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const {
    if (!byte_level) return model.encode(piece, scratch, out);
    scratch.letters = bytes_to_letters(piece);
    model.encode(scratch.letters, scratch, out);
  }
  Model model;
  bool byte_level;
};
using EncodingModel = std::variant<BpeModel, OfLetters<WordPieceModel>, OfLetters<UnigramModel>>;

using ModelScratch =
    std::variant<BpeModel::Scratch, OfLetters<WordPieceModel>::Scratch, OfLetters<UnigramModel>::Scratch>;

inline ModelScratch scratch_for(const EncodingModel& model) {
  return std::visit([]<typename Model>(const Model&) -> ModelScratch { return typename Model::Scratch(); }, model);
}

inline EncodingModel make_model(const TokenizerDescription& description) {
  const bool byte_level = is_byte_level(description);
  if (const auto* pieces = std::get_if<WordPieceDescription>(&description.model))
    return OfLetters<WordPieceModel>{WordPieceModel(*pieces), byte_level};
  if (const auto* unigram = std::get_if<UnigramDescription>(&description.model))
    return OfLetters<UnigramModel>{UnigramModel(*unigram), byte_level};
  return BpeModel(std::get<BpeDescription>(description.model), byte_level);
}

}  // namespace trireme::data
