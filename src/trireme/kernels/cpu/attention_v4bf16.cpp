#include "trireme/kernels/cpu/attention_body.h"

#if defined(__x86_64__)  // elsewhere nothing asks for it
namespace trireme::kernels::cpu {

constinit const AttentionBody kAttentionBfloat16Dot = body_of<Bfloat16Pairs>();

}  // namespace trireme::kernels::cpu
#endif
