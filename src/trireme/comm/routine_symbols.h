// comm/routine_symbols.h -- values that stand for any data: where an element came from and how it was combined.
//
// Two values are the same symbol exactly if they are combined from the same inputs by the same tree, where a (+) b and
// b (+) a are the same: the reductions commute bit by bit, but do not associate.
// Depends on: base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::comm {

using Symbol = std::uint32_t;
inline constexpr Symbol kUnwritten = 0;

class Symbols {
 public:
  explicit Symbols(int ranks);

  /// Element `element` of what rank `rank` put in.
  Symbol input(int rank, std::size_t element);
  /// a (+) b. Not both may contain the same rank, and both must be the same element: else `fault` says what is wrong.
  Symbol combine(Symbol a, Symbol b, std::string& fault);
  /// The average, where that was asked for; only of what all ranks gave.
  Symbol finish(Symbol value, std::string& fault);

  bool is_input(Symbol value, int rank, std::size_t element) const;
  bool is_result(Symbol value, std::size_t element) const;  // finished, hence of all ranks
  /// "element 3 of ranks 0 1 4"
  std::string describe(Symbol value) const;

 private:
  struct Node {
    std::size_t element = 0;
    int ranks = 0;  // how many gave to it
    bool finished = false;
  };
  Symbol add(Node node);
  std::uint64_t* givers(Symbol value) { return givers_.data() + static_cast<std::size_t>(value) * words_; }
  const std::uint64_t* givers(Symbol value) const { return givers_.data() + static_cast<std::size_t>(value) * words_; }

  int ranks_;
  std::size_t words_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> givers_;                // words_ for each node, a bit for each rank
  std::unordered_map<std::uint64_t, Symbol> known_;  // by what they are made of
};

}  // namespace trireme::comm
