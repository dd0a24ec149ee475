#include "norm.inl"

template int rowwise::launch_norm<rowwise::bf16>(const rw_norm_params&, void*, bool);
