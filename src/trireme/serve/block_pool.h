// serve/block_pool.h -- the blocks of a paged KV cache with reference counts, and the prefix cache over them.
//
//   BlockPool pool({.groups = nn::kv_cache_groups(shape, size)});
//   SequenceBlocks blocks = pool.begin(salt);
//   const std::int64_t cached = pool.acquire(blocks, tokens);   // tokens whose keys and values are there already
//   if (!pool.reserve(blocks, cached + chunk)) ...              // wait, or preempt another sequence
//   pool.commit(blocks, tokens, computed);                      // full blocks may be found by others from now on
//   pool.release(blocks);                                       // what is committed stays, until its block is needed
//
// Prefixes are a tree: a node is one full block of tokens behind its parent, and a salt is a root. A node is looked up
// by the hash of (parent, tokens), and found only where both are equal, so a collision costs a comparison and nothing
// else. Nodes have numbers of their own, never used twice: whoever holds one has the whole prefix for certain.
// A block is free, held by sequences, or cached (held by nobody, but found by its node). After every call
// free + held + cached = all.
// Depends on: base, nn/block_table.h. No tensors.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/nn/block_table.h"

namespace trireme::serve {

using PrefixNode = std::uint64_t;
inline constexpr PrefixNode kNoNode = 0;

/// The blocks of one sequence.
struct SequenceBlocks {
  std::vector<nn::BlockTable> tables = {};  ///< by group
  PrefixNode root = kNoNode;                ///< of its salt; none without a prefix cache
  std::vector<PrefixNode> chain = {};       ///< nodes of its first full blocks, as far as they are committed

  bool operator==(const SequenceBlocks&) const = default;
};

struct BlockPoolOptions {
  std::vector<nn::KvCacheGroup> groups = {};
  bool prefix_cache = true;
  int hash_bits = 64;  ///< fewer force collisions, for tests
};

class BlockPool {
 public:
  explicit BlockPool(BlockPoolOptions options);

  /// A sequence without tokens. Prefixes are found only by sequences with the same salt.
  SequenceBlocks begin(std::string_view salt);
  /// Takes the cached blocks of the longest prefix of `tokens` that a new sequence can use, and says how many tokens
  /// that is: full blocks, and never the last token, whose logits are wanted. In a group with a sliding window only
  /// blocks that the next token sees are needed.
  std::int64_t acquire(SequenceBlocks& sequence, std::span<const std::int64_t> tokens);
  /// Makes room for `length` tokens in all, evicting cached blocks where none is free. False: too few, nothing changed.
  [[nodiscard]] bool reserve(SequenceBlocks& sequence, std::int64_t length);
  /// The first `computed` tokens have keys and values: full blocks become part of the prefix tree.
  void commit(SequenceBlocks& sequence, std::span<const std::int64_t> tokens, std::int64_t computed);
  /// Gives up the blocks of sliding windows that no token after the first `length` ones will see.
  void trim(SequenceBlocks& sequence, std::int64_t length);
  /// Gives up all blocks: the sequence is as begin() made it, and must not be used any more.
  void release(SequenceBlocks& sequence);

  struct Count {
    std::int64_t all = 0, free = 0, held = 0, cached = 0;
    bool operator==(const Count&) const = default;
  };
  Count count(std::size_t group) const;
  std::size_t groups() const { return groups_.size(); }
  /// Blocks of a group that a sequence of `length` tokens holds at most, when it takes `chunk` tokens a step.
  std::int64_t most_blocks(std::size_t group, std::int64_t length, std::int64_t chunk) const;
  /// Whether the sequence could have that many blocks more in every group, with nothing else given up.
  bool could_reserve(const SequenceBlocks& sequence, std::int64_t length, std::int64_t chunk) const;

  std::uint64_t collisions() const { return collisions_; }  ///< nodes of the same hash that were not the one
  std::uint64_t evictions() const { return evictions_; }
  std::size_t nodes() const { return nodes_.size(); }
  /// Every count recomputed from the sequences that live. An InternalError names the first that differs.
  void check(std::span<const SequenceBlocks* const> sequences) const;

 private:
  struct Node {
    PrefixNode parent = kNoNode;
    std::vector<std::int64_t> tokens;
    std::uint64_t hash = 0;
    std::int64_t uses = 0;            // children, blocks, and sequences that end here
    std::vector<nn::BlockId> blocks;  // by group; kNoBlock: none
  };
  struct Block {
    std::int32_t refs = 0;
    PrefixNode node = kNoNode;
    std::uint64_t released = 0;  // when it was given up last, while it is cached
  };
  struct Group {
    std::int64_t window = 0;
    std::vector<Block> blocks;
    std::vector<nn::BlockId> free;                           // the last is the next
    std::set<std::pair<std::uint64_t, nn::BlockId>> cached;  // by `released`: the first is evicted first
  };

  std::uint64_t hash_of(PrefixNode parent, std::span<const std::int64_t> tokens) const;
  PrefixNode find(PrefixNode parent, std::span<const std::int64_t> tokens);
  PrefixNode find_or_add(PrefixNode parent, std::span<const std::int64_t> tokens);
  void use(PrefixNode node) { ++nodes_.at(node).uses; }
  void unuse(PrefixNode node);
  PrefixNode tail(const SequenceBlocks& sequence) const {
    return sequence.chain.empty() ? sequence.root : sequence.chain.back();
  }
  void take(std::size_t group, nn::BlockId block);
  void give_up(std::size_t group, nn::BlockId block);
  nn::BlockId allocate(std::size_t group);
  std::int64_t available(std::size_t group) const {
    return static_cast<std::int64_t>(groups_[group].free.size() + groups_[group].cached.size());
  }

  BlockPoolOptions options_;
  std::vector<Group> groups_;
  std::unordered_map<PrefixNode, Node> nodes_;
  std::unordered_map<std::uint64_t, std::vector<PrefixNode>> by_hash_;
  PrefixNode next_node_ = 1;
  std::uint64_t clock_ = 0, collisions_ = 0, evictions_ = 0;
};

}  // namespace trireme::serve
