#include "norm.inl"

template int rowwise::launch_norm<float>(const rw_norm_params&, void*, bool);
