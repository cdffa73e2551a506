#define TRIREME_CROSS_ENTROPY_TABLE kCrossEntropyV4
#include "trireme/kernels/cpu/cross_entropy_body.h"
