#include "trireme/comm/routine_symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace trireme::comm {

namespace {

// Keys of the three kinds of symbols; a sum's operands are never kUnwritten, so a zero below marks a finished one.
std::uint64_t key_of_sum(Symbol a, Symbol b) { return std::uint64_t{std::max(a, b)} << 32 | std::min(a, b); }
std::uint64_t key_of_finished(Symbol value) { return std::uint64_t{value} << 32; }

}  // namespace

Symbols::Symbols(int ranks) : ranks_(ranks), words_((static_cast<std::size_t>(ranks) + 63) / 64) { add({}); }

Symbol Symbols::add(Node node) {
  nodes_.push_back(node);
  givers_.resize(givers_.size() + words_, 0);
  return static_cast<Symbol>(nodes_.size() - 1);
}

Symbol Symbols::input(int rank, std::size_t element) {
  const Symbol value = add({.element = element, .ranks = 1});
  givers(value)[rank / 64] = std::uint64_t{1} << (rank % 64);
  return value;
}

Symbol Symbols::combine(Symbol a, Symbol b, std::string& fault) {
  const auto [found, fresh] = known_.try_emplace(key_of_sum(a, b), kUnwritten);
  if (!fresh) return found->second;
  const Node left = nodes_[a], right = nodes_[b];
  bool twice = false;
  for (std::size_t word = 0; word < words_; ++word) twice |= (givers(a)[word] & givers(b)[word]) != 0;
  if (left.element != right.element || twice || left.finished || right.finished) {
    fault = fmt::format("combines {} with {}", describe(a), describe(b));
    return kUnwritten;
  }
  const Symbol value = add({.element = left.element, .ranks = left.ranks + right.ranks});
  for (std::size_t word = 0; word < words_; ++word) givers(value)[word] = givers(a)[word] | givers(b)[word];
  return found->second = value;
}

Symbol Symbols::finish(Symbol value, std::string& fault) {
  const auto [found, fresh] = known_.try_emplace(key_of_finished(value), kUnwritten);
  if (!fresh) return found->second;
  const Node node = nodes_[value];
  if (node.finished || node.ranks != ranks_) {
    fault = fmt::format("finishes {}", describe(value));
    return kUnwritten;
  }
  const Symbol finished = add({.element = node.element, .ranks = node.ranks, .finished = true});
  std::copy_n(givers(value), words_, givers(finished));
  return found->second = finished;
}

bool Symbols::is_input(Symbol value, int rank, std::size_t element) const {
  const Node& node = nodes_[value];
  return node.ranks == 1 && !node.finished && node.element == element &&
         (givers(value)[rank / 64] >> (rank % 64) & 1) != 0;
}

bool Symbols::is_result(Symbol value, std::size_t element) const {
  return nodes_[value].finished && nodes_[value].element == element;
}

std::string Symbols::describe(Symbol value) const {
  if (value == kUnwritten) return "memory that nothing was written to";
  const Node& node = nodes_[value];
  std::string text = fmt::format("{}element {} of rank{}", node.finished ? "the finished " : "", node.element,
                                 node.ranks == 1 ? "" : "s");
  for (int rank = 0; rank < ranks_; ++rank)
    if ((givers(value)[rank / 64] >> (rank % 64) & 1) != 0) fmt::format_to(std::back_inserter(text), " {}", rank);
  return text;
}

}  // namespace trireme::comm
