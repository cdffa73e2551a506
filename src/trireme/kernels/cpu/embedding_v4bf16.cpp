#define TRIREME_EMBEDDING_TABLE kEmbeddingV4Bf16
#include "trireme/kernels/cpu/embedding_body.h"
