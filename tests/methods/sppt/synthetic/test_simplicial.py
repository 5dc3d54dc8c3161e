"""Ways on surfaces of triangles, against shortest paths between very many points of their edges."""
