/* All that is asked of the driver without a GPU: which CUDA it serves. */
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
