#define TRIREME_DROPOUT_TABLE kDropoutV4Bf16
#include "trireme/kernels/cpu/dropout_body.h"
