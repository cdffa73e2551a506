#define TRIREME_CROSS_ENTROPY_TABLE kCrossEntropyV4Bf16
#include "trireme/kernels/cpu/cross_entropy_body.h"
